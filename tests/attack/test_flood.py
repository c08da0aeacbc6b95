"""One payer floods the spool with new instance ids and amplified payloads: another's push is stored next, not last."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.model import Connection, DropReason, RecordKind
from exporters.spool.reader import SpoolReader
from exporters.spool.records import push_origin, push_record, sender_bytes
from exporters.spool.waiting import PUSHES, oldest_ms
from exporters.spool.writer import PushSpool, SpoolWriter
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.telemetry.ingest.bench import JAVA, NOW_MS, FakeStore

MIB = 1 << 20
FLOOD = 400


def payload(points: int) -> bytes:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for n in range(points):
        point = metric.gauge.data_points.add(as_int=1, time_unix_nano=NOW_MS * 1_000_000)
        point.attributes.add(key="n").value.int_value = n
    return zstandard.compress(data.SerializeToString())


class Attacked:
    """A spool with 400 pushes of a hostile payer, then one of a polite one; and a worker whose every look at the clock
    is a tenth of a second."""

    def __init__(self, directory: Path, hostile: bytes) -> None:
        self.directory = directory
        self.store = FakeStore()
        self.numbers = itertools.count()
        self.spool = PushSpool(
            lambda name: SpoolWriter(directory, name, segment_bytes=16 * MIB, max_bytes=64 * MIB), "pushes"
        )
        for _ in range(FLOOD):
            self.push("hostile", hostile)
        self.push("polite", JAVA)
        ticks = itertools.count()
        self.reader = SpoolReader(directory)
        self.ingester = Ingester(
            self.reader,
            self.store,  # type: ignore[arg-type] # a fake
            Quarantine(directory / "quarantine", 10, MIB),
            IngestOptions(max_decompressed_bytes=MIB, rollup_interval_ms=60_000),
            Progress(lambda: next(ticks) / 10),
        )

    def push(self, principal: str, body: bytes) -> None:
        connection = Connection("c", "SASL_SSL", principal, "192.0.2.1", 1, "java", "4", 1)
        origin = push_origin(next(self.numbers).to_bytes(16, "big"), 7, False, 4, sender_bytes(connection, principal))
        self.spool.append(RecordKind.PUSH, push_record(NOW_MS, origin, body))
        self.spool.flush()

    def stored(self, principal: str) -> int:
        return sum(row["principal"] == principal for row in self.store.rows("pushes"))

    def close(self) -> None:
        self.spool.close()
        self.reader.close()


def test_polite_push_is_stored_before_the_flood_that_came_first(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path, payload(300))
    steps = 0
    while not attacked.stored("polite"):
        assert attacked.ingester.step(NOW_MS)
        steps += 1
    assert steps <= 3
    assert attacked.stored("hostile") < FLOOD / 2
    attacked.push("polite", JAVA)  # and the next, while the flood still waits
    steps = 0
    while attacked.stored("polite") < 2:
        assert attacked.ingester.step(NOW_MS)
        steps += 1
    assert steps <= 6
    assert attacked.stored("hostile") < FLOOD / 2
    assert oldest_ms(tmp_path) == {PUSHES: NOW_MS}
    while attacked.ingester.step(NOW_MS):
        pass
    assert (attacked.stored("polite"), attacked.stored("hostile")) == (2, FLOOD)  # nothing is lost, nor stored twice
    assert oldest_ms(tmp_path) == {}
    attacked.close()


@pytest.mark.parametrize("points", [5_000, 20_000])
def test_amplified_flood_makes_no_rows(tmp_path: Path, points: int) -> None:
    """150 million rows came of 0.7 MB."""
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for _ in range(points):
        metric.gauge.data_points.add()
    bomb = zstandard.compress(data.SerializeToString())
    assert points > 500 + 2 * len(bomb)
    attacked = Attacked(tmp_path, bomb)
    began = time.monotonic()
    while attacked.ingester.step(NOW_MS):
        pass
    assert {row["principal"] for row in attacked.store.rows("points")} == {"polite"}
    assert attacked.ingester.counts.dropped == {DropReason.OVER_BUDGET: FLOOD}
    assert attacked.stored("hostile") == FLOOD  # a row each that says so
    print(f"{FLOOD} pushes of {points} points in {len(bomb)} bytes took {time.monotonic() - began:.1f} s")
    attacked.close()
