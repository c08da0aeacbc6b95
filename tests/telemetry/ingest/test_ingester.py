"""Spool to rows: each record is stored once, and a batch is repeated after a store failure.

A push that the store or the worker cannot process is isolated, and the rest of its batch is stored once.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.clickhouse.store import PermanentWriteError, TransientWriteError
from exporters.model import DropReason, RecordKind
from exporters.spool.reader import Batch
from exporters.spool.records import encode_rows
from telemetry.decode.bounds import PayloadLimits
from telemetry.ingest.progress import Suspect, suspect_after
from telemetry.ingest.quarantine import held
from tests.telemetry.decode.payloads import NOW_MS
from tests.telemetry.ingest.conftest import JAVA, MIB, USAGE, Bench, away


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


BAD = "bad-client"


def refuse(bench: Bench, table: str, is_bad: Callable[[dict[str, Any]], bool], error: type[Exception]) -> list[int]:
    """The store refuses inserts into a table that hold a bad row. Returns the sizes of those it accepted."""
    accepted: list[int] = []
    keep = bench.store.keep

    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        if name == table and any(map(is_bad, rows.to_pylist())):
            raise error("a row is bad")
        if name == table:
            accepted.append(rows.num_rows)
        keep(name, rows, token=token)

    bench.store.insert = insert
    return accepted


def is_bad(row: dict[str, Any]) -> bool:
    return bool(row["client_id"] == BAD)


@pytest.mark.parametrize("seed", range(4))
def test_each_push_is_stored_once_or_quarantined_under_random_faults(bench: Bench, seed: int) -> None:
    """Random faults: rows refused by some inserts only, the store unavailable before or after one, killed workers."""
    draw, real = random.Random(seed), bench.store.insert
    faults = [10 + draw.randrange(20)]
    refused = {f"client-{n}" for n in draw.sample(range(12), 4)}

    def maybe(fault: BaseException) -> None:
        if faults[0] > 0 and draw.random() < 0.15:
            faults[0] -= 1
            raise fault

    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        maybe(TransientWriteError("away"))
        maybe(SystemExit())  # stands for kill -9
        if name == "points" and draw.random() < 0.7 and refused & {row["client_id"] for row in rows.to_pylist()}:
            raise PermanentWriteError("a row is bad")
        real(name, rows, token=token)
        maybe(TransientWriteError("away after it stored the rows"))
        maybe(SystemExit())

    bench.store.insert = insert
    for n in range(12):
        bench.push(client_id=f"client-{n}")
    bench.run()
    stored = Counter(row["client_id"] for row in bench.store.rows("points"))
    quarantined = [push.facts["client_id"] for push in held(bench.directory / "quarantine")]
    assert set(stored.values()) == {108}
    assert set(quarantined) <= refused
    assert sorted([*stored, *quarantined]) == sorted(f"client-{n}" for n in range(12))
    assert bench.balance() == (12 - len(quarantined), len(quarantined), 0)


@pytest.mark.parametrize("table", ["series", "points", "pushes", "client_instances"])
@pytest.mark.parametrize("error", [PermanentWriteError, ValueError, MemoryError])
def test_bad_push_is_quarantined_and_others_are_stored(bench: Bench, table: str, error: type[Exception]) -> None:
    refuse(bench, table, is_bad, error)
    for n in range(9):
        bench.push(client_id=BAD if n == 4 else f"good-{n}")
    bench.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE]))
    assert bench.step() == 10
    assert bench.balance() == (9, 1, 0)
    assert bench.ingester.counts.dropped == {DropReason.REFUSED: 1}
    assert {row["client_id"] for row in bench.store.rows("points")} >= {f"good-{n}" for n in range(9) if n != 4}
    assert len([row for row in bench.store.rows("points") if row["client_id"] != BAD]) == 8 * 108
    [push] = held(bench.directory / "quarantine")
    assert (push.facts["client_id"], push.facts["reason"]) == (BAD, "refused")
    assert push.facts["cause"] == f"{table}: a row is bad"
    assert push.push().payload == JAVA
    if table != "pushes":
        codes = {push["client_id"]: push["error_code"] for push in bench.store.rows("pushes")}
        assert codes == {f"good-{n}": 0 for n in range(9) if n != 4} | {BAD: 0 if table == "client_instances" else -1}


def test_single_failure_quarantines_nothing(bench: Bench) -> None:
    failures = iter([PermanentWriteError("once")])

    def fail(table: str) -> None:
        if table == "points" and (failure := next(failures, None)):
            raise failure

    bench.store.fail = fail
    bench.push()
    bench.push(client_id="app-2")
    assert bench.step() == 2
    assert bench.balance() == (2, 0, 0)
    assert len(bench.store.tables["points"]) == 1


def test_rejecting_table_causes_a_bounded_number_of_inserts(bench: Bench) -> None:
    tried = 0

    def fail(table: str) -> None:
        nonlocal tried
        if table == "quota_usage":
            tried += 1
            raise PermanentWriteError("no")

    bench.store.fail = fail
    for _ in range(1_000):
        bench.writer.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE]))
    bench.writer.flush()
    assert bench.step() == 1_000
    assert tried < 200
    assert bench.balance() == (0, 1_000, 0)


def test_range_that_kills_the_worker_is_halved_until_quarantined(bench: Bench) -> None:
    suspect: Suspect | None = None
    ranges: list[Batch] = []
    for n in range(40):
        bench.push(client_id=BAD if n == 17 else f"d-{n:02}")

    deaths = 0
    while True:
        bench.restart(suspect=suspect, max_records=32, on_batch=ranges.append)
        decode = bench.ingester._decoder.outcome

        def outcome(push: Any, decode: Any = decode) -> Any:
            if push.client_id == BAD:
                raise SystemExit  # stands for kill -9, or a crash of a library
            return decode(push)

        bench.ingester._decoder.outcome = outcome  # type: ignore[method-assign]
        try:
            while bench.step():
                pass
            break
        except SystemExit:
            deaths += 1
            last = ranges[-1]
            suspect = suspect_after(suspect, last.segment, last.start, last.end, 32)
    assert deaths == 3  # 32, 2, 1 records: then it is quarantined without being decoded
    assert bench.balance() == (39, 1, 0)
    [push] = held(bench.directory / "quarantine")
    assert (push.facts["client_id"], push.facts["reason"]) == (BAD, "refused")
    assert len(bench.store.rows("points")) == 39 * 108
