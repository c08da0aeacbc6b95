"""Moves rows between ClickHouse and Spark: connects, splits a read in slices, reads and stages Arrow batches over HTTP.

A slice is one Spark task and one ClickHouse query, of time, cluster, quota key and clients. A bucket never spans
clusters or quota keys, and the rates of its clients are summed per second. So a slice has complete windows of one
cluster and quota key, in total about the weight SLICE_ROWS. The weight is the number of rows, or of the seconds in all
windows of all clients, if that is more: memory holds an array of seconds per client and window, however few rows there
are (1.2 million rows of 100,000 clients took 425 MiB).

A slice that is too large although it has a single step of time is divided by intervals of clients. All members of a
bucket must be in one slice. So boundaries are between clients if each bucket has one client, between users if each has
one user, and between client-ids if each has one client-id. If some buckets have several users and some several
client-ids, a slice stays whole. The first two follow the sorting key of quota_usage and usage_1m (user, client_id), so
each slice reads its own rows only.

`read` and `stage` use `mapInArrow`: executors connect to ClickHouse directly and no rows pass through the driver. A
Python Data Source (PySpark 4.3) would do the same, but each of its reads and writes starts Python processes for
planning: about one CPU-second per source on top of the workers. Its column pruning and filter pushdown bring nothing
here, because our queries already name their columns and filters.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from exporters.clickhouse.client import ClickHouse, with_writer
from exporters.clickhouse.connection import Endpoint, tls_of
from exporters.clickhouse.errors import StoreError
from quota_metrics.levels.windows_query import OF_KEY
from spark_jobs.arrow import arrow_schema
from spark_jobs.clickhouse.runs import Run, await_staged
from spark_jobs.time_range import THROTTLE_LOOKBACK_MS, TimeRange

_TIMEOUT_S = 300.0
_PATIENCE_S = 5.0


class NothingToReadError(StoreError):
    """The requested range has no rows."""


def clickhouse_of(url: str, password: str = "") -> ClickHouse:
    """The server of `http(s)://user@host:8123/headroom`. For a URL without a user it is the managed server's writer, if
    its password file is readable: jobs also read as the writer, because the reader's limits are for interactive use.

    Raises ValueError for other URLs, and for URLs that contain a password; StoreError.
    """
    endpoint = with_writer(Endpoint.parse(url, password, tls_of(os.environ)))
    return ClickHouse((endpoint,), _TIMEOUT_S, patience_s=_PATIENCE_S, consistent=True)


SLICE_ROWS = 2_000_000  # the query of 1.8 million rows took ClickHouse 110 MiB; the limit that we keep is 256
FEWEST_ROWS = 1_500_000  # a slice within an hour reads the whole hour: fewer rows do not pay for that
_STEPS = 512  # maximum number of counting steps in a range


class StepWeight(NamedTuple):
    """The weight of the rows of quota_usage in one step of the range."""

    cluster: str
    quota_key: str
    start_ms: int
    weight: int


def step_ms(when: TimeRange) -> int:
    """Length of the steps in which rows are counted: a multiple of the window, so that there are at most about 500
    steps."""
    windows = max((when.to_ms - when.from_ms) // when.window_ms // _STEPS, 1)
    return windows * when.window_ms


def slices_of_time(counts: Iterable[StepWeight], when: TimeRange, cores: int) -> list[dict[str, Any]]:
    """Query parameters of each slice and its `weight`, from counts ordered by time. Slices of a cluster and quota key
    are contiguous and end after the longest possible throttle time of the last rows."""
    ordered = sorted(counts, key=lambda count: (count.cluster, count.quota_key, count.start_ms))
    total = sum(count.weight for count in ordered)
    most = min(SLICE_ROWS, max(total // (2 * cores), FEWEST_ROWS))
    slices: list[dict[str, Any]] = []
    for (cluster, quota_key), group in groupby(ordered, key=lambda count: (count.cluster, count.quota_key)):
        key = {"cluster": cluster, "quota_key": quota_key, "window_ms": when.window_ms}
        slices += [{**key, **bounds} for bounds in _bounds(list(group), when, most)]
    return slices


def _bounds(counts: list[StepWeight], when: TimeRange, most: int) -> Iterator[Mapping[str, int]]:
    # Steps are aligned to the epoch and may begin before the range.
    starts = [max(counts[0].start_ms, when.from_ms)]
    weights = [0]
    for count in counts:
        if weights[-1] and weights[-1] + count.weight > most and count.start_ms > starts[-1]:
            starts.append(count.start_ms)
            weights.append(0)
        weights[-1] += count.weight
    end = min(counts[-1].start_ms + step_ms(when) + THROTTLE_LOOKBACK_MS, when.to_ms)
    for start, following, weight in zip(starts, [*starts[1:], end], weights, strict=True):
        if start < following:
            yield {"from_ms": start, "to_ms": following, "weight": weight}


_RAW = f"""quota_usage
WHERE ts >= fromUnixTimestamp64Milli({{from_ms:Int64}} - {THROTTLE_LOOKBACK_MS})
  AND ts < fromUnixTimestamp64Milli({{to_ms:Int64}}) AND {OF_KEY}"""
_STORED = f"""usage_1m
WHERE window_start >= toDateTime(intDiv({{from_ms:Int64}}, 1000))
  AND window_start < toDateTime(intDiv({{to_ms:Int64}}, 1000)) AND {OF_KEY}"""
_RESOLVED = """quota_client_limits
WHERE run = {run:String} AND cluster = {cluster:String} AND quota_key = {quota_key:String} AND state = 'limited'"""

# Whether buckets have several users, and several client-ids. Hashes take less memory than names.
_SHARED = """
SELECT max(first_user != last_user) AS by_users, max(first_client_id != last_client_id) AS by_client_ids
FROM (
    SELECT min(cityHash64(user)) AS first_user, max(cityHash64(user)) AS last_user,
           min(cityHash64(client_id)) AS first_client_id, max(cityHash64(client_id)) AS last_client_id
    FROM {rows}
    GROUP BY cityHash64(bucket_user, bucket_client_id)
)"""

# Some clients, chosen by their hash, and their weight. A name that is no UTF-8 cannot be a parameter, so it is no
# boundary.
_NAMES = """
SELECT toString({user}) AS first, toString({client_id}) AS second,
       greatest({samples}, intDiv({{window_ms:Int64}}, 1000) * uniq(user, client_id, {window})) AS weight
FROM {rows} AND cityHash64(user, client_id) % {{one_of:UInt32}} = 0
GROUP BY first, second
HAVING isValidUTF8(first) AND isValidUTF8(second)
ORDER BY first, second"""
_CHOSEN = 20_000  # clients from which boundaries are chosen: slices differ by a per cent or two
_LEAST_WEIGHT = 60  # of a client, about

_EVERYONE = {"from_user": "", "from_client_id": "", "to_user": "", "to_client_id": "", "is_last": 1}
_EVERY_CLIENT_ID = {"least_client_id": "", "below_client_id": "", "is_last_client_id": 1}


class _Shared(NamedTuple):
    """Who shares a bucket."""

    by_users: bool
    by_client_ids: bool


_NOBODY = _Shared(by_users=False, by_client_ids=False)


def slices_of_clients(
    clickhouse: ClickHouse,
    slices: Iterable[Mapping[str, Any]],
    *,
    stored: bool,
    whole_buckets: bool = True,
    most: int = SLICE_ROWS,
) -> Iterator[dict[str, Any]]:
    """The query parameters of each slice, those of slices of more weight than `most` with an interval of clients
    (`windows_query.OF_CLIENTS`). `slices` have `source`, too, and `run` if limits of their rows were resolved.
    `stored`: of usage_1m. Without `whole_buckets` the members of a bucket may be apart. Raises StoreError."""
    for each in slices:
        number = -(-each["weight"] // most)
        shared = _shared(clickhouse, each, stored=stored) if number > 1 and whole_buckets else _NOBODY
        if number > 1 and not (shared.by_users and shared.by_client_ids):
            starts = _starts(_names(clickhouse, each, shared, stored=stored), number)
            yield from ({**each, **interval} for interval in _intervals(starts, by_client_id=shared.by_users))
        else:
            yield dict(each)


def is_divided(one: Mapping[str, Any]) -> bool:
    """Whether the slice has some of the clients only."""
    return "is_last" in one


def _intervals(starts: Sequence[tuple[str, str]], *, by_client_id: bool) -> Iterator[dict[str, Any]]:
    for start, end in zip([("", ""), *starts], [*starts, None], strict=True):
        until, is_last = end or ("", ""), int(end is None)
        if by_client_id:
            some = {"least_client_id": start[1], "below_client_id": until[1], "is_last_client_id": is_last}
            yield {**_EVERYONE, **some}
        else:
            begin = {"from_user": start[0], "from_client_id": start[1]}
            yield {**_EVERY_CLIENT_ID, **begin, "to_user": until[0], "to_client_id": until[1], "is_last": is_last}


def _starts(names: Sequence[Mapping[str, Any]], number: int) -> list[tuple[str, str]]:
    """Where slices of about the same weight begin, without the first. `names` are ordered."""
    each = sum(name["weight"] for name in names) / number
    starts, filled = [], 0
    for name in names:
        if filled >= each:
            starts.append((name["first"], name["second"]))
            filled = 0
        filled += name["weight"]
    return starts


def _names(clickhouse: ClickHouse, one: Mapping[str, Any], shared: _Shared, *, stored: bool) -> list[dict[str, Any]]:
    sql = _NAMES.format(
        user="''" if shared.by_users else "user",
        client_id="''" if shared.by_client_ids else "client_id",
        samples="sum(samples)" if stored else "count()",
        window="window_start" if stored else "intDiv(toUnixTimestamp64Milli(ts), {window_ms:Int64})",
        rows=_STORED if stored else _RAW,
    )
    one_of = max(one["weight"] // (_CHOSEN * _LEAST_WEIGHT), 1)
    return clickhouse.rows(sql, {**one, "one_of": one_of})


def _shared(clickhouse: ClickHouse, one: Mapping[str, Any], *, stored: bool) -> _Shared:
    limited = f"{_STORED} AND limit >= 0" if stored else f"{_RAW} AND isNotNull(limit)"
    every = [f"{limited} AND limit_known"] + ([_RESOLVED] if "run" in one else [])
    answers = [clickhouse.rows(_SHARED.format(rows=rows), one)[0] for rows in every]
    return _Shared(*(any(row[name] for row in answers) for name in _Shared._fields))


BLOCK_ROWS = 25_000  # a worker takes some 250 MiB for a block of 70,000 windows

Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read(
    spark: SparkSession, clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """The rows of `query` for each set of parameters in `slices`, one Spark task each. A task raises StoreError when
    ClickHouse fails the query."""
    numbers = spark.range(0, len(slices), 1, max(len(slices), 1))  # one partition per slice number
    return numbers.mapInArrow(_reader(clickhouse, query, schema, slices), schema)


def read_slices(
    spark: SparkSession,
    clickhouse: ClickHouse,
    query: Callable[..., str],
    schema: StructType,
    slices: Iterable[Mapping[str, Any]],
) -> DataFrame:
    """`read` of slices of which some have some of the clients only: `query` takes `divided` and returns the SELECT."""
    kinds: dict[bool, list[Mapping[str, Any]]] = {}
    for each in slices:
        kinds.setdefault(is_divided(each), []).append(each)
    frames = (read(spark, clickhouse, query(divided=divided), schema, alike) for divided, alike in kinds.items())
    return reduce(DataFrame.unionAll, frames)


def _reader(clickhouse: ClickHouse, query: str, schema: StructType, slices: Sequence[Mapping[str, Any]]) -> Batches:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow = arrow_schema(schema)
        for number in (number for numbers in batches for number in numbers.column(0)):
            for batch in clickhouse.batches(query, slices[int(number.as_py())]):
                table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
                yield from table.select(arrow.names).cast(arrow).to_batches()

    return rows


def stage(rows: DataFrame, clickhouse: ClickHouse, table: str, run: Run, select: str = "") -> int:
    """Inserts the rows of a run, each partition in blocks of about BLOCK_ROWS; returns their number. `select`:
    that of `ClickHouse.insert`.

    Deduplication tokens contain partition and block, and the rows of a partition must be sorted, by keys that are equal
    for no two of them: so a retried task counts once. A task raises StoreError when ClickHouse fails an insert; so does
    `stage` when the server does not show the rows."""
    cores = max(rows.sparkSession.sparkContext.defaultParallelism, 1)
    few = rows.withColumn("run", F.lit(str(run.id))).coalesce(cores)
    written = few.mapInArrow(_writer(clickhouse, table, select, f"{run.id}/{table}"), "written long").collect()
    staged: int = sum(row["written"] for row in written)
    await_staged(clickhouse, table, run, staged)
    return staged


def _writer(clickhouse: ClickHouse, table: str, select: str, token: str) -> Batches:
    def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        for number, block in enumerate(_blocks(batches)):
            clickhouse.insert(table, block, token=f"{token}/{partition}/{number}", select=select)
            yield _count(block.num_rows)

    return written


def _count(rows: int) -> pa.RecordBatch:
    """One row, `written`. To convert a Python list pyarrow imports pandas, which costs as much as a worker's start."""
    number = pa.py_buffer(rows.to_bytes(8, sys.byteorder))
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.int64(), 1, [None, number])], ["written"])


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combines batches into blocks of at least BLOCK_ROWS rows, except the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= BLOCK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(batch.num_rows for batch in waiting):
        yield pa.Table.from_batches(waiting)


@contextmanager
def source_errors() -> Iterator[None]:
    """Re-raises a Python worker's StoreError instead of the Spark exception that wraps it."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        cause = re.search(r"\bStore\w*Error: (.+)", str(exc))
        if cause is None:
            raise
        raise StoreError(cause[1].strip()) from exc
