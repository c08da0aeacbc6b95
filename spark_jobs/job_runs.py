"""A row of job_runs for a run: running, then succeeded or failed, with what went in and out."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any

import pyarrow as pa

from spark_jobs.clickhouse.client import ClickHouse, SourceError
from spark_jobs.clickhouse.queries import JOB_RUNS
from spark_jobs.time_range import TimeRange

_MOMENT = pa.timestamp("ms", "UTC")
_SECOND = pa.timestamp("s", "UTC")
_TYPES: dict[str, pa.DataType] = {
    "job": pa.string(),
    "run_id": pa.binary(16),
    "run_version": pa.uint64(),
    "window_from": _SECOND,
    "window_to": _SECOND,
    "status": pa.string(),
    "rows_in": pa.uint64(),
    "rows_out": pa.uint64(),
    "started_at": _MOMENT,
    "finished_at": _MOMENT,
    "error": pa.string(),
    "stats": pa.map_(pa.string(), pa.float64()),
}
_SCHEMA = pa.schema(_TYPES)


class JobRun:
    """Context of a run: says `running` when entered, how it ended when left. Entering raises SourceError, and so
    does leaving after success; a failure is never hidden by one to record it."""

    def __init__(self, clickhouse: ClickHouse, job: str, run_id: uuid.UUID, *, version: int, when: TimeRange) -> None:
        self.version = version  # ns since the epoch at the start
        self.rows_in = 0
        self.rows_out = 0
        self.stats: dict[str, float] = {}
        self._clickhouse = clickhouse
        self._job = job
        self._run_id = run_id
        self._when = when

    def __enter__(self) -> JobRun:
        self._record("running", finished_at_ms=None, error="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished_at_ms = time.time_ns() // 1_000_000
        if exc is None:
            self._record("succeeded", finished_at_ms=finished_at_ms, error="")
            return
        with suppress(SourceError):
            lines = str(exc).splitlines()
            error = f"{type(exc).__name__}: {lines[0] if lines else ''}"
            self._record("failed", finished_at_ms=finished_at_ms, error=error)

    def _record(self, status: str, *, finished_at_ms: int | None, error: str) -> None:
        row: dict[str, Any] = {
            "job": self._job,
            "run_id": self._run_id.bytes,
            "run_version": self.version,
            "window_from": self._when.from_ms // 1000,
            "window_to": self._when.to_ms // 1000,
            "status": status,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "started_at": self.version // 1_000_000,
            "finished_at": finished_at_ms,
            "error": error,
            "stats": list(self.stats.items()),
        }
        table = pa.Table.from_pylist([row], schema=_SCHEMA)
        self._clickhouse.insert(JOB_RUNS, table, token=f"{self._run_id}/{status}")
