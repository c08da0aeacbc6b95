"""A run of a job: recorded in job_runs, its staged rows published to quota_utilization.

The record says running, then succeeded or failed, with row counts, and lets one run at a time proceed. A live run
renews it every HEARTBEAT_S. A run waits while an earlier live run covers an overlapping range. A run whose row was not
renewed for LEASE_S, or whose process on this host no longer exists, is recorded as killed.

Readers see all of a run's rows or none. Executors write to quota_utilization_staging. INSERT SELECTs of about
INSERT_ROWS rows, each of whole windows, publish the rows of the run, together with a tombstone for each row of an
earlier run that has no input any more; the commit marker of each window is written last. An incomplete window never
replaces a complete one. Each step has a deduplication token of the run, so it may be repeated. A replica may show fewer
rows than were staged: each step compares their number with what the run wrote, and fails, because what is missing
would become tombstones.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import SparkSession

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.errors import StoreError
from spark_jobs.clickhouse.queries import STAGING
from spark_jobs.clickhouse.source import NothingToReadError, clickhouse_of, source_errors
from spark_jobs.options import JobOptions
from spark_jobs.session import progress, session
from spark_jobs.transforms.verdicts import COLUMNS

HEARTBEAT_S = 5.0
LEASE_S = 30
WAIT_S = 600.0
RECORD_S = 10.0  # how long a failure is tried to be recorded when the server is away
RETRY_S = 1.0
SEEN_S = 60.0  # in which a replica has to show the rows that were confirmed

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
    does exit after success; an error in recording a failure never hides the failure.

    A run with a higher `version` replaces the rows of earlier runs in the range `computed`."""

    def __init__(self, clickhouse: ClickHouse, job: str, options: JobOptions, version: int = 0) -> None:
        """A run that begins now. With `version` it is a part of another run, whose place it has in the order of runs:
        one that waits for the other would wait for this one, too."""
        self.id = uuid.uuid4()
        self.version = version or time.time_ns()
        self.options = options
        self.computed = options.when  # may begin earlier, by late rows
        self.step = ""
        self.rows_in = self.rows_out = self.rows_bad = self.rows_late = 0
        self.watermark_ms = 0
        self.stats: dict[str, float] = {}
        self._clickhouse = clickhouse
        self._job = job
        self._done = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"{job}-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        # Which the client needs from its second statement on. SIGTERM raises in whatever is running: in an import it
        # would leave a part of the module, with which the failure could not be recorded.
        import stamina  # noqa: F401

        self._record("running", finished_ms=-1, error="")
        self._heart.start()
        try:
            self._wait_for_others()
        except BaseException as exc:  # records the failure and re-raises
            self.__exit__(type(exc), exc, None)
            raise
        return self

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        self._done.set()
        self._heart.join()
        finished_ms = time.time_ns() // 1_000_000
        if exc is None or isinstance(exc, NothingToReadError):  # a quiet night is no failure
            self._record("succeeded", finished_ms=finished_ms, error=str(exc or ""))
            return
        lines = str(exc).splitlines()
        error = f"{type(exc).__name__}: {lines[0] if lines else ''}"
        # A server that failed the run may be restarting; without the record the next run would wait for LEASE_S.
        deadline = time.monotonic() + (RECORD_S if isinstance(exc, StoreError) else 0.0)
        while True:
            with suppress(StoreError):
                self._record("failed", finished_ms=finished_ms, error=error)
                break
            if time.monotonic() > deadline:
                break
            time.sleep(RETRY_S)

    def begin(self, step: str) -> None:
        """Says in job_runs and in Spark's UI what the run does now."""
        self.step = step
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.sparkContext.setJobDescription(step)

    def store(self, table: str, rows: list[dict[str, Any]], columns: pa.Schema) -> None:
        """Inserts the rows with the id of the run, and counts them. Raises StoreError."""
        self.rows_out = len(rows)
        if rows:
            stored = [{**row, "run_id": str(self.id)} for row in rows]
            with_run = columns.append(pa.field("run_id", pa.string()))
            self._clickhouse.insert(table, pa.Table.from_pylist(stored, schema=with_run), token=f"{self.id}/{table}")

    def last_watermark(self) -> tuple[int, int]:
        """The newest watermark of successful runs over the same windows (0: none), and the server's clock, in ms.
        Raises StoreError."""
        (row,) = self._clickhouse.rows(_WATERMARK, self._facts())
        return row["watermark_ms"], row["now_ms"]

    def publish(self, staged: int) -> None:
        """Publishes the staged rows of the run, `staged` in number, then commits their windows. Raises StoreError, also
        when the server does not show all of these rows in SEEN_S."""
        self._await_staged(staged)
        run = self.parameters
        windows = [(row["start_s"], row["rows"]) for row in self._clickhouse.rows(_STAGED, run)]
        for first_s, until_s in pairwise([run["from_s"], *insert_starts(windows), run["to_s"]]):
            rows = sum(more for start_s, more in windows if first_s <= start_s < until_s)
            bounds = {**run, "first_s": first_s, "until_s": until_s, "staged": rows}
            self._clickhouse.command(_PUBLISH, bounds, settings=_ONE_REPLICA, token=f"{self.id}/publish/{first_s}")
        self._clickhouse.command(_COMMIT, {**run, "staged": staged}, settings=_ONE_REPLICA, token=f"{self.id}/commit")

    def clear(self) -> None:
        """Removes the run's staged rows. Rows on other shards of a cluster expire after a day (TTL). Raises
        StoreError."""
        table = self._clickhouse.stored(STAGING)
        self._clickhouse.command(f"ALTER TABLE {table} DROP PARTITION {{run:String}}", self.parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        """Query parameters of the statements that read and publish staged rows."""
        times = {"from_s": self.computed.from_ms // 1000, "to_s": self.computed.to_ms // 1000}
        return {**self._facts(), "run": str(self.id), "version": self.version, **times}

    def _await_staged(self, rows: int) -> None:
        """Returns when the server shows the rows that the run wrote. Raises StoreError after SEEN_S."""
        deadline = time.monotonic() + SEEN_S
        while (visible := self._clickhouse.rows(_VISIBLE, self.parameters)[0]["rows"]) < rows:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{STAGING} shows {visible} of the {rows} rows that this run wrote: the replica at"
                    f" {self._clickhouse.current} is behind, or rows went to another server; nothing was published"
                )
            time.sleep(RETRY_S)

    def _wait_for_others(self) -> None:
        """Returns when no earlier run over an overlapping range is alive. Records the dead ones as killed."""
        deadline = time.monotonic() + WAIT_S
        while True:
            is_preceded = False
            for other in self._clickhouse.rows(_OTHERS, self._facts()):
                if _is_gone(other["owner"]) or other["silent_s"] > LEASE_S:
                    self._clickhouse.command(_ABANDON, {"job": self._job, "run_id": other["id"]})
                elif (other["version"], other["id"]) < (self.version, str(self.id)):
                    is_preceded = True
            if not is_preceded:
                return
            if time.monotonic() > deadline:
                raise StoreError(f"another run of {self._job} is still running over this range after {WAIT_S:.0f} s")
            time.sleep(1.0)

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_S):
            with suppress(StoreError):
                self._record("running", finished_ms=-1, error="")

    def _facts(self) -> dict[str, Any]:
        when = self.options.when
        return {
            "job": self._job,
            "run_id": str(self.id),
            "source": self.options.source,
            "cluster": self.options.cluster,
            "window_s": when.window_s,
            "from_s": when.from_ms // 1000,
            "to_s": when.to_ms // 1000,
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
            "owner": f"{socket.gethostname()}/{os.getpid()}",
            "watermark_ms": self.watermark_ms,
            "step": self.step,
        }
        self._clickhouse.command(_RECORD, row)


@contextmanager
def started(name: str, options: JobOptions) -> Iterator[tuple[JobRun, SparkSession, ClickHouse]]:
    """The recorded run, a Spark session and the client of the store. Raises ValueError (url), JavaError, StoreError."""
    clickhouse = clickhouse_of(options.url, options.password)
    job_run = JobRun(clickhouse, name, options)
    with job_run, source_errors(), session(name, options.master) as spark, progress(name, spark.sparkContext):
        yield job_run, spark, clickhouse


def _is_gone(owner: str) -> bool:
    """Whether the process ran on this host and no longer exists."""
    host, _, pid = owner.partition("/")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except OSError as exc:
        return isinstance(exc, ProcessLookupError)
    return False


_COLUMNS = ", ".join(f"`{name}`" for name in COLUMNS)
INSERT_ROWS = 200_000  # takes ClickHouse about 400 MiB to publish
_KEY = "cluster, source, quota_key, window_s, window_start, user, client_id"
_OF_RUN = "run = {run:String}"
_OF_RANGE = (
    "source = {source:String} AND window_s = {window_s:UInt32}"
    " AND window_start >= toDateTime({from_s:Int64}) AND window_start < toDateTime({to_s:Int64})"
    " AND ({cluster:String} = '' OR cluster = {cluster:String})"
)
_COMPLETE_BEFORE = f"""(tuple(cluster, window_start) IN (
    SELECT cluster, window_start FROM quota_utilization_windows FINAL WHERE {_OF_RANGE} AND complete = 1
))"""  # noqa: S608 - made of our own words
_OF_INSERT = "window_start >= toDateTime({first_s:Int64}) AND window_start < toDateTime({until_s:Int64})"
_ENDED = "window_start + window_s <= toDateTime({to_s:Int64})"

_VISIBLE = f"SELECT count() AS rows FROM {STAGING} WHERE {_OF_RUN}"  # noqa: S608 - made of our own words
_STAGED = f"""
SELECT toInt64(toUnixTimestamp(window_start)) AS start_s, count() AS rows
FROM {STAGING} WHERE {_OF_RUN} GROUP BY start_s ORDER BY start_s"""  # noqa: S608 - made of our own words


def _all_staged(within: str) -> str:
    """A condition that fails the statement when it sees fewer staged rows than the run wrote."""
    counted = "throwIf(count() < {staged:UInt64}, 'a replica lacks staged rows: nothing was published')"
    return f"(SELECT {counted} FROM {STAGING} WHERE {within}) = 0"  # noqa: S608 - made of our own words


_PUBLISH = f"""
INSERT INTO quota_utilization ({_COLUMNS}, run_id, run_version, is_deleted)
SELECT {_COLUMNS}, toUUID({{run:String}}), {{version:UInt64}}, 0
FROM {STAGING}
WHERE {_OF_RUN} AND {_OF_INSERT} AND (complete = 1 OR NOT {_COMPLETE_BEFORE})
  AND {_all_staged(f"{_OF_RUN} AND {_OF_INSERT}")}
UNION ALL
SELECT {_COLUMNS}, toUUID({{run:String}}), {{version:UInt64}}, 1
FROM quota_utilization AS before FINAL
WHERE {_OF_RANGE} AND {_OF_INSERT} AND ({_ENDED} OR NOT {_COMPLETE_BEFORE})
  AND tuple({_KEY}) NOT IN (SELECT {_KEY} FROM {STAGING} WHERE {_OF_RUN} AND {_OF_INSERT})
  AND {_all_staged(f"{_OF_RUN} AND {_OF_INSERT}")}
SETTINGS max_insert_threads = 1, max_threads = 1, min_insert_block_size_rows = 1000000,
         min_insert_block_size_bytes = 0"""  # noqa: S608 - made of our own words

_COMMIT = f"""
INSERT INTO quota_utilization_windows
    (cluster, source, window_s, window_start, complete, rows, run_id, run_version)
SELECT cluster, source, window_s, window_start, max(complete), sum(rows), toUUID({{run:String}}), {{version:UInt64}}
FROM (
    SELECT cluster, source, window_s, window_start, complete, 1 AS rows FROM {STAGING} WHERE {_OF_RUN}
    UNION ALL
    SELECT cluster, source, window_s, window_start, {_ENDED}, 0 AS rows
    FROM quota_utilization_windows FINAL WHERE {_OF_RANGE}
)
WHERE (complete = 1 OR NOT {_COMPLETE_BEFORE}) AND {_all_staged(_OF_RUN)}
GROUP BY cluster, source, window_s, window_start"""  # noqa: S608 - made of our own words

# Each subquery of a statement reads the same replica of a shard.
_ONE_REPLICA = {"load_balancing": "in_order"}


def insert_starts(windows: Iterable[tuple[int, int]]) -> list[int]:
    """Starts of the second and later inserts of INSERT_ROWS rows, from (start, rows) of windows ordered by start."""
    starts: list[int] = []
    rows = 0
    for start_s, more in windows:
        if rows and rows + more > INSERT_ROWS:
            starts.append(start_s)
            rows = 0
        rows += more
    return starts
