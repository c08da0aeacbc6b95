"""Records a run in job_runs (running, then succeeded or failed, with row counts) and lets one run at a time proceed.

A live run renews its row every HEARTBEAT_S. A run waits while an earlier live run covers an overlapping range. A run
whose row was not renewed for LEASE_S, or whose process on this host no longer exists, is recorded as killed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from types import TracebackType
from typing import Any

from pyspark.sql import SparkSession

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.errors import StoreError
from spark_jobs.options import JobOptions
from spark_jobs.time_range import TimeRange

HEARTBEAT_S = 5.0
LEASE_S = 30
WAIT_S = 600.0
RECORD_S = 10.0  # how long a failure is tried to be recorded when the server is away
RETRY_S = 1.0

_RECORD = """
INSERT INTO job_runs (job, run_id, run_version, window_from, window_to, status, rows_in, rows_out, started_at,
    finished_at, error, stats, updated_at, source, owner, rows_bad, rows_late, watermark, cluster, window_s, step)
SELECT {job:String}, toUUID({run_id:String}), {version:UInt64}, toDateTime({from_s:Int64}), toDateTime({to_s:Int64}),
    {status:String}, {rows_in:UInt64}, {rows_out:UInt64}, fromUnixTimestamp64Milli({started_ms:Int64}),
    if({finished_ms:Int64} < 0, NULL, fromUnixTimestamp64Milli({finished_ms:Int64})), {error:String},
    mapFromArrays({stat_names:Array(String)}, {stat_values:Array(Float64)})::Map(LowCardinality(String), Float64),
    now64(3), {source:String}, {owner:String}, {rows_bad:UInt64}, {rows_late:UInt64},
    fromUnixTimestamp64Milli({watermark_ms:Int64}), {cluster:String}, {window_s:UInt32}, {step:String}"""

# Other runs that may write the same rows, in order of precedence.
_OTHERS = """
SELECT toString(run_id) AS id, run_version AS version, owner,
       toFloat64(now64(3)) - toFloat64(updated_at) AS silent_s,
       toInt64(toUnixTimestamp(window_from)) AS from_s, toInt64(toUnixTimestamp(window_to)) AS to_s
FROM job_runs FINAL
WHERE job = {job:String} AND source = {source:String} AND status = 'running' AND run_id != toUUID({run_id:String})
  AND window_from < toDateTime({to_s:Int64}) AND window_to > toDateTime({from_s:Int64})
ORDER BY version, id"""

_ABANDON = """
INSERT INTO job_runs
SELECT * REPLACE ('failed' AS status, 'killed: its process is gone' AS error, now64(3) AS finished_at,
                  now64(3) AS updated_at)
FROM job_runs FINAL
WHERE job = {job:String} AND run_id = toUUID({run_id:String})"""

# Only of runs that computed the same windows: with another `--cluster` or `--window` a run leaves other late rows.
_WATERMARK = """
SELECT toInt64(toUnixTimestamp64Milli(max(watermark))) AS watermark_ms,
       toInt64(toUnixTimestamp64Milli(now64(3))) AS now_ms
FROM job_runs FINAL
WHERE job = {job:String} AND source = {source:String} AND cluster = {cluster:String} AND window_s = {window_s:UInt32}
  AND status = 'succeeded'"""


class JobRun:
    """Context manager of a run: records `running` on entry and the outcome on exit. Entry raises StoreError, and so
    does exit after success; an error in recording a failure never hides the failure."""

    def __init__(
        self, clickhouse: ClickHouse, job: str, *, version: int, when: TimeRange, source: str = "", cluster: str = ""
    ) -> None:
        self.id = uuid.uuid4()
        self.version = version  # ns since the epoch at the start
        self.when = when
        self.source = source
        self.cluster = cluster  # '': all
        self.step = ""
        self.rows_in = self.rows_out = self.rows_bad = self.rows_late = 0
        self.watermark_ms = 0
        self.stats: dict[str, float] = {}
        self._clickhouse = clickhouse
        self._job = job
        self._done = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"{job}-heartbeat", daemon=True)

    @classmethod
    def of(cls, clickhouse: ClickHouse, job: str, options: JobOptions) -> JobRun:
        """A run that begins now."""
        scope = {"source": options.source, "cluster": options.cluster}
        return cls(clickhouse, job, version=time.time_ns(), when=options.when, **scope)

    def __enter__(self) -> JobRun:
        self._record("running", finished_ms=-1, error="")
        self._heart.start()
        try:
            self._wait_for_others()
        except BaseException as exc:  # records the failure and re-raises
            self.__exit__(type(exc), exc, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._heart.join()
        finished_ms = time.time_ns() // 1_000_000
        if exc is None:
            self._record("succeeded", finished_ms=finished_ms, error="")
            return
        lines = str(exc).splitlines()
        error = f"{type(exc).__name__}: {lines[0] if lines else ''}"
        # A server that failed the run may be restarting; without the record the next run would wait for LEASE_S.
        patience_s = RECORD_S if isinstance(exc, StoreError) else 0.0
        with suppress(StoreError):
            self._record_failure(finished_ms, error, time.monotonic() + patience_s)

    def _record_failure(self, finished_ms: int, error: str, deadline: float) -> None:
        """Retries until the deadline. Raises StoreError."""
        while True:
            try:
                return self._record("failed", finished_ms=finished_ms, error=error)
            except StoreError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def begin(self, step: str) -> None:
        """Says in job_runs and in Spark's UI what the run does now."""
        self.step = step
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.sparkContext.setJobDescription(step)

    def last_watermark(self) -> tuple[int, int]:
        """The newest watermark of successful runs over the same windows (0: none), and the server's clock, in ms.
        Raises StoreError."""
        (row,) = self._clickhouse.rows(_WATERMARK, self._facts())
        return row["watermark_ms"], row["now_ms"]

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self._is_preceded():
            if time.monotonic() > deadline:
                raise StoreError(f"another run of {self._job} is still running over this range after {WAIT_S:.0f} s")
            time.sleep(1.0)

    def _is_preceded(self) -> bool:
        """Whether an earlier run over an overlapping range is alive."""
        others = self._clickhouse.rows(_OTHERS, self._facts())
        for other in others:
            if _is_gone(other["owner"]) or other["silent_s"] > LEASE_S:
                self._clickhouse.command(_ABANDON, {"job": self._job, "run_id": other["id"]})
            elif (other["version"], other["id"]) < (self.version, str(self.id)):
                return True
        return False

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_S):
            with suppress(StoreError):
                self._record("running", finished_ms=-1, error="")

    def _facts(self) -> dict[str, Any]:
        return {
            "job": self._job,
            "run_id": str(self.id),
            "source": self.source,
            "cluster": self.cluster,
            "window_s": self.when.window_s,
            "from_s": self.when.from_ms // 1000,
            "to_s": -(-self.when.to_ms // 1000),
        }

    def _record(self, status: str, *, finished_ms: int, error: str) -> None:
        row = {
            **self._facts(),
            "version": self.version,
            "status": status,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_bad": self.rows_bad,
            "rows_late": self.rows_late,
            "started_ms": self.version // 1_000_000,
            "finished_ms": finished_ms,
            "error": error,
            "stat_names": list(self.stats),
            "stat_values": list(self.stats.values()),
            "owner": _owner(),
            "watermark_ms": self.watermark_ms,
            "step": self.step,
        }
        self._clickhouse.command(_RECORD, row)


def _owner() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"


def _is_gone(owner: str) -> bool:
    """Whether the process ran on this host and no longer exists."""
    host, _, pid = owner.partition("/")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
