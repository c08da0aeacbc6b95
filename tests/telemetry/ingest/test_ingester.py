"""Spool to rows: each record is stored once, bad ones are isolated, and a batch is repeated after a store failure."""

from __future__ import annotations

import math
from typing import cast

import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.clickhouse.store import TransientWriteError
from exporters.model import DropReason, RecordKind
from exporters.spool.records import encode_rows
from telemetry.decode.bounds import PayloadLimits
from telemetry.ingest.quarantine import held
from tests.telemetry.decode.payloads import NOW_MS
from tests.telemetry.ingest.bench import JAVA, MIB, USAGE, Bench, away


def test_push_is_stored_in_all_its_tables(bench: Bench) -> None:
    bench.push(terminating=True)
    assert bench.balance() == (0, 0, 1)
    assert bench.step() == 1
    assert bench.step() == 0
    points, series = bench.store.rows("points"), bench.store.rows("series")
    assert len(points) == len(series) == 108
    assert {point["series_id"] for point in points} == {row["series_id"] for row in series}
    assert any(math.isnan(point["value"]) for point in points)
    assert {
        (row["cluster"], row["principal"], row["client_id"], row["client_instance_id"]) for row in points + series
    } == {("prod", "alice", "app-1", bytes(range(16)))}
    assert {(row["software_name"], row["software_version"], row["broker_id"]) for row in series} == {
        ("apache-kafka-java", "4.3.1", 1)
    }
    assert ("node_id", "node-1") in [pair for row in series for pair in row["attributes"]]
    [push] = bench.store.rows("pushes")
    assert push["received_at"].timestamp() * 1000 == NOW_MS
    assert len(push["push_id"]) == 16
    assert (push["transport"], push["compression"], push["subscription_id"], push["terminating"]) == (
        "kafka",
        "zstd",
        7,
        True,
    )
    assert (push["bytes"], push["uncompressed_bytes"], push["points"], push["error_code"]) == (len(JAVA), 9646, 108, 0)
    [instance] = bench.store.rows("client_instances")
    assert (instance["pushes"], instance["points"], instance["terminated"]) == (1, 108, 1)
    assert instance["source_address"] == "10.0.0.7"
    assert bench.balance() == (1, 0, 0)
    assert bench.ingester.counts.points_written == 108
    assert bench.reader.unsure == set(), "the positions of a new spool are certain"


@pytest.mark.parametrize(("everything", "written"), [(False, [2]), (True, [2, 1, 1])])
def test_records_that_arrive_during_a_batch_are_collected_for_the_next(
    bench: Bench, everything: bool, written: list[int]
) -> None:
    bench.push()
    bench.push()
    arriving = iter(range(2))

    def push_another(table: str) -> None:
        if table == "pushes" and next(arriving, None) is not None:
            bench.push()

    bench.store.fail = push_another
    assert list(bench.ingester.batches(lambda: NOW_MS, everything=everything)) == written
    while any(bench.ingester.batches(lambda: NOW_MS, everything=False)):
        pass
    assert bench.balance()[0] == len(bench.store.rows("pushes")) >= 3
    assert bench.balance()[2] == 0


def test_invalid_push_is_dropped_alone_and_recorded(bench: Bench) -> None:
    bench.push(b"not zstd")
    bench.push(zstandard.compress(bytes(2 * MIB)))
    bench.push(zstandard.compress(b"no metrics at all"))
    bench.push(b"", codec=4)  # an empty push, as an old librdkafka sends it
    bench.push(JAVA)
    bench.append(RecordKind.PUSH, b"no push")
    bench.append(RecordKind.INSTANCE, b"no instance")
    bench.append(RecordKind.USAGE, b"[[1]]")
    bench.append(RecordKind.LIMITS, b"{")
    assert bench.step() == 9
    assert [push["error_code"] for push in bench.store.rows("pushes")] == [87, 118, 87, 0, 0]
    assert len(bench.store.rows("points")) == 108
    assert len(bench.store.rows("client_instances")) == 2
    assert bench.ingester.counts.dropped == {
        DropReason.DECOMPRESS: 1,
        DropReason.TOO_LARGE: 1,
        DropReason.DECODE: 1,
        DropReason.CORRUPT_RECORD: 4,
    }
    assert bench.balance() == (2, 7, 0)
    quarantined = {push.payload() for push in held(bench.directory / "quarantine")}
    assert quarantined == {b"not zstd", zstandard.compress(bytes(2 * MIB)), zstandard.compress(b"no metrics at all")}


def test_unexpected_exception_drops_only_its_push(bench: Bench) -> None:
    bench.restart(limits=PayloadLimits(chars=cast(int, "many")))  # stands for any unexpected exception
    bench.push()
    bench.push(b"", codec=0)
    assert bench.step() == 2
    assert [push["error_code"] for push in bench.store.rows("pushes")] == [87, 0]
    assert bench.balance() == (1, 1, 0)


def test_corrupt_spool_record_is_counted_as_dropped(bench: Bench) -> None:
    bench.push()
    bench.push()
    [segment] = bench.directory.glob("*.spool")
    with segment.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")
    bench.step()
    assert bench.balance() == (1, 1, 0)
    assert bench.ingester.as_dict()["drop_reasons"]["corrupt_record"] == 1


@pytest.mark.parametrize("failing", ["series", "points", "client_instances", "quota_usage"])
def test_same_batch_is_retried_after_a_store_failure(bench: Bench, failing: str) -> None:
    def fail(table: str) -> None:
        if table == failing:
            raise TransientWriteError("away")

    bench.push()
    bench.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE]))
    bench.store.fail = fail
    for _ in range(3):
        with pytest.raises(TransientWriteError):
            bench.step()
        bench.push()  # arrives later and must not join the batch
    assert bench.balance() == (0, 0, 5)
    assert bench.ingester.as_dict()["position_bytes"] == 0
    bench.store.fail = lambda table: None
    assert bench.step() == 2
    assert bench.balance() == (2, 0, 3)
    assert bench.ingester.as_dict()["position_bytes"] > len(JAVA)
    assert bench.step() == 3
    assert len(bench.store.rows("points")) == 4 * 108
    assert len(bench.store.rows("series")) == 108
    assert len(bench.store.rows("quota_usage")) == 1


def test_series_are_written_once_per_batch_and_hour(bench: Bench) -> None:
    for now_ms, rows in ((NOW_MS, 108), (NOW_MS + 3_599_999, 108), (NOW_MS + 3_600_000, 216)):
        for _ in range(3):
            bench.push()
        assert bench.step(now_ms) == 3
        assert len(bench.store.rows("series")) == bench.ingester.counts.series_written == rows


def test_batch_ends_at_the_insert_row_limit(bench: Bench) -> None:
    data = MetricsData()
    points = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points
    points.extend([type(points.add())(as_int=1, time_unix_nano=NOW_MS * 1_000_000)] * 49_999)
    bomb = zstandard.compress(data.SerializeToString())
    bench.restart(limits=PayloadLimits(points_per_byte=1e6))
    for _ in range(21):
        bench.push(bomb)
    assert bench.step() == 20
    assert bench.balance() == (20, 0, 1)
    assert bench.step() == 1
    sizes = [rows.num_rows for rows in bench.store.tables["points"].values()]
    assert sizes == [1_000_000, 50_000]
    assert len({push["push_id"] for push in bench.store.rows("pushes")}) == 21


def test_unwritable_spool_raises_transient_error(bench: Bench) -> None:
    bench.push()
    positions = bench.directory / "positions.0"
    positions.rename(bench.directory / "away")
    positions.mkdir()
    with pytest.raises(TransientWriteError, match="spool"):
        bench.step()
    positions.rmdir()
    assert bench.step() == 1
    assert bench.balance() == (1, 0, 0)
    assert len(bench.store.rows("points")) == 108


@pytest.mark.parametrize("lost", ["removed", "overwritten"])
def test_lost_positions_store_nothing_twice(bench: Bench, lost: str) -> None:
    """The segment is read again from its beginning, and its batches are cut elsewhere."""
    for n in range(12):
        bench.push(received_at_ms=NOW_MS + n)
    bench.restart(max_records=5)
    assert (bench.step(), bench.step()) == (5, 5)  # and 2 wait
    for name in ("positions.0", "positions.1"):
        if lost == "removed":
            (bench.directory / name).unlink()
        else:
            (bench.directory / name).write_bytes(b"x" * 70_000)
    bench.restart(max_records=7)
    bench.store.fail = away
    with pytest.raises(TransientWriteError):  # nothing is stored before the store has answered
        bench.step()
    bench.store.fail = lambda table: None
    assert bench.step() == 7
    bench.restart(max_records=7)  # the worker does not forget that the rest is uncertain, too
    assert bench.step() == 5
    stored = [row["received_at"] for row in bench.store.rows("pushes")]
    assert len(stored) == len(set(stored)) == 12
    assert sum(row["pushes"] for row in bench.store.rows("client_instances")) == 12
    points = [(row["series_id"], row["received_at"]) for row in bench.store.rows("points")]
    assert len(points) == 12 * 108
    bench.push(received_at_ms=NOW_MS + 12)
    assert bench.step() == 1
    assert len(bench.store.rows("pushes")) == 13


def test_pushes_with_texts_that_are_no_utf_8_are_stored_and_counted(bench: Bench) -> None:
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(JAVA)
    for _ in range(3):
        bench.push(plain.replace(b"node-1", b"node-\xfc"), 0)
        assert bench.step() == 1
    bench.push()
    assert bench.step() == 1
    assert bench.balance() == (4, 0, 0)
    assert len(bench.store.rows("points")) == 4 * 108
    values = {value for row in bench.store.rows("series") for key, value in row["attributes"] if key == "node_id"}
    assert "node-\N{REPLACEMENT CHARACTER}" in values
    assert bench.ingester.as_dict()["replaced_texts"] == 3
    bench.restart()
    assert bench.ingester.as_dict()["replaced_texts"] == 3
