"""Periodic tasks with a bug, and the quota recorder when spool or disk fail: limits wait, lost usage is counted."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from exporters.clickhouse.errors import StoreError
from exporters.model import Exchange, QuotaLimit, RecordKind
from exporters.spool.records import decode_rows
from exporters.spool.writer import SpoolFull
from headroom.server.periodic import PeriodicTask, QuotaRecorder, first, run_periodic_tasks
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.config.timeline import LimitHistory
from quota_metrics.measure.usage_meter import PRODUCE, UsageMeter

ALICE = entity_of({"user": "alice"})


class Spool:
    """A spool whose next appends or flushes fail; a flush that fails writes nothing and empties the queue."""

    def __init__(self) -> None:
        self.full = self.broken = False
        self.queued: list[tuple[RecordKind, bytes]] = []
        self.written: list[tuple[RecordKind, bytes]] = []

    def append(self, kind: RecordKind, body: bytes) -> None:
        if self.full:
            raise SpoolFull("cannot queue")
        self.queued.append((kind, body))

    def flush(self) -> None:
        queued, self.queued = self.queued, []
        if self.broken:
            raise OSError(28, "No space left on device")
        self.written += queued

    def limits(self) -> list[QuotaLimit]:
        return [row for _, body in self.written for row in decode_rows(RecordKind.LIMITS, body)]


class Cluster:
    """Quotas that change, and the recorder that follows them."""

    def __init__(self) -> None:
        self.rules: Rules = {}
        self.now_ms = 0
        self.spool = Spool()
        self.meter = UsageMeter("c")
        self._history = LimitHistory("c")
        self.recorder = QuotaRecorder(
            spool=self.spool,  # type: ignore[arg-type] # a double
            meter=self.meter,
            read_changes=self._changes,
            now_ms=lambda: self.now_ms,
        )

    async def _changes(self) -> list[QuotaLimit]:
        return self._history.changes(self.rules, self.now_ms)

    def look(self, value: float | None, now_ms: int) -> None:
        self.rules = {} if value is None else {ALICE: {"producer_byte_rate": value}}
        self.now_ms = now_ms
        asyncio.run(self.recorder.write_limits())

    def use(self) -> None:
        self.meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 1000, 1, 0, self.now_ms))
        asyncio.run(self.recorder.write_usage())


@pytest.mark.parametrize(("fault", "raised"), [("full", SpoolFull), ("broken", OSError)])
def test_unwritten_changes_are_written_later_with_their_own_time(fault: str, raised: type[Exception]) -> None:
    cluster = Cluster()
    setattr(cluster.spool, fault, True)
    for value, now_ms in ((1.0, 10), (1.0, 20), (2.0, 30), (None, 40)):
        with pytest.raises(raised):
            cluster.look(value, now_ms)
    setattr(cluster.spool, fault, False)
    cluster.look(None, 50)
    assert [(row.valid_from_ms, row.value) for row in cluster.spool.limits()] == [(10, 1.0), (30, 2.0), (40, None)]
    cluster.look(None, 60)
    assert len(cluster.spool.limits()) == 3


def test_unwritten_usage_is_counted_as_lost() -> None:
    cluster = Cluster()
    cluster.spool.full = True
    cluster.use()
    cluster.spool.full, cluster.spool.broken = False, True
    with pytest.raises(OSError):
        cluster.use()
    assert cluster.recorder.rows_lost == 2
    cluster.spool.broken = False
    cluster.use()
    assert (cluster.recorder.rows_lost, len(cluster.spool.written)) == (2, 1)


def test_failing_task_does_not_stop_itself_or_others() -> None:
    steps: Counter[str] = Counter()
    faults: Counter[str] = Counter()

    async def run() -> None:
        enough = asyncio.Event()

        async def sound() -> None:
            steps["sound"] += 1

        async def buggy() -> None:
            steps["buggy"] += 1
            if steps["buggy"] >= 5 and steps["sound"] >= 5:
                enough.set()
            raise KeyError("a bug")

        tasks = [PeriodicTask("buggy", 1, buggy), PeriodicTask("sound", 1, sound)]
        await asyncio.wait_for(run_periodic_tasks(tasks, enough, asyncio.Event().wait(), faults), 60)

    with capture_logs() as logs:
        asyncio.run(run())
    assert faults["buggy"] == steps["buggy"]
    assert faults["sound"] == 0
    assert [entry["task"] for entry in logs].count("buggy") == faults["buggy"].bit_length()


@pytest.mark.parametrize(("code", "level"), [(60, "info"), (81, "info"), (241, "warning"), (0, "warning")])
def test_a_store_without_tables_is_waited_for(code: int, level: str) -> None:
    """A first start is no fault: migrations may take longer than the start does."""

    async def step() -> None:
        try:
            raise StoreError("Code: 60. DB::Exception: Unknown table expression identifier", code)
        except StoreError as exc:
            raise ConnectionError(f"cannot read the stored limits: {exc}") from exc

    with capture_logs() as logs:
        asyncio.run(first(PeriodicTask("quotas", 1_000, step)))
    assert [(one["log_level"], one["task"], "error" in one) for one in logs] == [(level, "quotas", level == "warning")]
