"""Periodic tasks of a network process. A failure is logged when it begins and when it ends."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import NamedTuple

import structlog

from exporters.clickhouse.errors import is_without_schema
from exporters.model import QuotaLimit, RecordKind, StoredFacts, TopicSample, UsageSample
from exporters.spool.records import encode_rows
from exporters.spool.writer import SpoolFull, SpoolWriter
from headroom.clock import now_ms
from quota_metrics.kafka.errors import ClusterError
from quota_metrics.measure.usage_meter import UsageMeter

log = structlog.get_logger(__name__)

_ROWS_PER_RECORD = 1_000


class PeriodicTask(NamedTuple):
    """Calls `step` every `interval_ms`; it may raise ClusterError, OSError and SpoolFull. `on_the_clock`: at wall times
    that are multiples of the interval, so that rows of several gateways have equal timestamps."""

    name: str
    interval_ms: int
    step: Callable[[], Awaitable[None]]
    on_the_clock: bool = False


class QuotaRecorder:
    """Writes usage and limits to the spool. `now_ms` is wall time; `further` returns rows that others than the meter
    measured."""

    def __init__(
        self,
        *,
        spool: SpoolWriter,
        meter: UsageMeter,
        read_changes: Callable[[], Awaitable[list[QuotaLimit]]],
        now_ms: Callable[[], int],
        further: Callable[[int], Sequence[UsageSample]] = lambda _now_ms: (),
    ) -> None:
        self.rows_lost = 0
        self._spool = spool
        self._meter = meter
        self._read_changes = read_changes
        self._now_ms = now_ms
        self._further = further
        self._unsaved: list[QuotaLimit] = []

    async def write_usage(self) -> None:
        """Raises OSError."""
        at_ms = self._now_ms()
        self.write_rows(RecordKind.USAGE, [*self._meter.samples(at_ms), *self._further(at_ms)])

    def write_rows(self, kind: RecordKind, rows: Sequence[UsageSample | TopicSample]) -> None:
        """What finds no room, and after an OSError all of them, is lost and counted."""
        queued = 0
        for start in range(0, len(rows), _ROWS_PER_RECORD):
            part = rows[start : start + _ROWS_PER_RECORD]
            try:
                self._spool.append(kind, encode_rows(kind, part))
                queued += len(part)
            except SpoolFull:
                self.rows_lost += len(part)
        try:
            self._spool.flush()
        except OSError:
            self.rows_lost += queued
            raise

    async def write_limits(self) -> None:
        """Writes changed quotas. Raises ClusterError, OSError, SpoolFull; a retry writes the same changes."""
        self._unsaved += await self._read_changes()
        if self._unsaved:
            self._spool.append(RecordKind.LIMITS, encode_rows(RecordKind.LIMITS, self._unsaved))
            self._spool.flush()
            self._unsaved = []


def write_facts(spool: SpoolWriter, facts: Sequence[StoredFacts]) -> None:
    """Raises OSError, SpoolFull; a retry writes the same rows."""
    if facts:
        spool.append(RecordKind.FACTS, encode_rows(RecordKind.FACTS, facts))
        spool.flush()


async def run_periodic_tasks(
    periodic_tasks: Iterable[PeriodicTask], until: asyncio.Event, beside: Awaitable[object], faults: Counter[str]
) -> None:
    """Runs all tasks, and `beside`, until the event is set; raises what `beside` raises. An exception of a step is a
    bug in that task: it is logged, counted in `faults` by the task's name, and retried."""
    await run_until(until, beside, [_every(task, faults) for task in periodic_tasks])


async def run_until(
    stop: asyncio.Event, beside: Awaitable[object], coroutines: Iterable[Coroutine[object, object, object]]
) -> None:
    """Runs the coroutines until the event is set, or one of them or `beside` ends; cancels them then. Raises what has
    ended one."""
    loop = asyncio.get_running_loop()
    running: list[asyncio.Future[object]] = [loop.create_task(part) for part in (stop.wait(), *coroutines)]
    try:
        done, _ = await asyncio.wait([asyncio.ensure_future(beside), *running], return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def run_once(task: PeriodicTask) -> None:
    """Runs one step now. Logs an error of the cluster or the spool; the task retries later."""
    try:
        await task.step()
    except (ClusterError, OSError, SpoolFull) as exc:
        _log_failure(task, exc)


def _log_failure(task: PeriodicTask, exc: Exception) -> None:
    if is_without_schema(exc):  # the storage worker creates it, and says so when it cannot
        log.info("task waits until the store has its tables", task=task.name)
    else:
        log.warning("task fails, will retry", task=task.name, error=str(exc))


async def _every(task: PeriodicTask, faults: Counter[str]) -> object:
    failing = False
    while True:
        if task.on_the_clock:
            at_ms = now_ms()
            due_ms = at_ms - at_ms % task.interval_ms + task.interval_ms
            while at_ms < due_ms <= at_ms + task.interval_ms:  # timers fire early; set back, it starts over
                await asyncio.sleep((due_ms - at_ms) / 1000)
                at_ms = now_ms()
        else:
            await asyncio.sleep(task.interval_ms / 1000)
        try:
            await task.step()
        except (ClusterError, OSError, SpoolFull) as exc:
            if not failing:
                _log_failure(task, exc)
            failing = True
        except Exception:  # a bug in this task must not stop the others
            faults[task.name] += 1
            if faults[task.name] & (faults[task.name] - 1) == 0:  # logs the 1st, 2nd, 4th, 8th ... only
                log.exception("task failed unexpectedly, will retry", task=task.name)
        else:
            if failing:
                log.info("task works again", task=task.name)
            failing = False
