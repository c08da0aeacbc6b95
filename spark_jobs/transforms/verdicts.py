"""The verdict on each client in each window: usage is correlated with telemetry, instances and teams, then the windows
of a client are folded in order by `quota_metrics.verdict`, the same functions as in the service.

Quotas are per broker, so a window has a row for each broker of the client. Its verdict is that on the worst one.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from exporters.model import BYTE_KEYS, UNKNOWN, UNOWNED
from quota_metrics.minutes.surroundings import seen_instance
from quota_metrics.verdict.changes import ByteReport, changes_before
from quota_metrics.verdict.evaluate import Verdict, evaluate
from quota_metrics.verdict.level_and_reason import is_worth_a_row
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS, MEMORY_WINDOWS, Thresholds
from quota_metrics.verdict.trend import lag_per_min, usage_trend
from quota_metrics.verdict.window import SUMMED, InstanceChange, Memory, Surroundings, Telemetry, Window
from quota_metrics.windows import QuotaWindow
from spark_jobs.time_range import TimeRange

LOOKBACK_WINDOWS: Final = MEMORY_WINDOWS + 1  # windows to read before the first reported one
# How long before a window's end a client instance may have been seen last. A muted client cannot push, and a client
# with a push interval of 5 minutes does not push in most windows.
INSTANCE_LOOKBACK_MS: Final = 3_600_000
_CLIENT: Final = ("cluster", "user", "client_id")
# Sorts compare the first eight bytes of the first column without reading the row: a hash decides nearly all of them.
_HASH: Final = "client_hash"
_TELEMETRY: Final = tuple(name for name in Telemetry._fields if name != "lag_per_min")
_LAG: Final = ("lag_windows", "lag_records")


def correlated(
    usage: DataFrame,
    telemetry: DataFrame,
    instances: DataFrame,
    byte_reports: DataFrame,
    teams: DataFrame,
    observed: DataFrame,
) -> DataFrame:
    """The rows of usage with what else is known of the client in the window, those of a client in one partition, in the
    order of windows. Before them are its instances, and before those of a window what instances report of their bytes,
    each in a row of its own: some clients have thousands, which in each of their windows would not fit into a worker.
    The schemas are those of `queries`."""
    rows = usage
    for name, reported in (("instance", instances), ("byte_report", byte_reports)):
        of_client = reported.select(*_CLIENT, F.struct(*reported.drop(*_CLIENT).columns).alias(name))
        rows = rows.unionByName(of_client, allowMissingColumns=True)
    rows = rows.repartition(*_CLIENT).withColumn(_HASH, F.xxhash64(*_CLIENT))
    # Structs that are null where nothing was reported.
    telemetry = telemetry.select(*_CLIENT, "window_start_ms", F.struct(*_TELEMETRY, *_LAG).alias("telemetry"))
    joined = (
        rows.join(telemetry, on=[*_CLIENT, "window_start_ms"], how="left")
        .join(F.broadcast(teams), on=["user", "client_id"], how="left")
        .join(F.broadcast(observed), on=["cluster", "window_start_ms"], how="left")
    )
    at = F.coalesce("window_start_ms", "byte_report.window_start_ms")  # null, which is first, of instances
    order = (_HASH, *_CLIENT, at, "source", "quota_key", "broker_id", "instance.instance", "byte_report.instance")
    return joined.sortWithinPartitions(*order).select(*Window._fields, *_Row._fields[1:])


class _Row(NamedTuple):
    """A row of `correlated`. Where it is an instance or a report of bytes, the window has names of the client only."""

    window: Window
    telemetry: dict[str, Any] | None
    instance: dict[str, Any] | None
    byte_report: dict[str, Any] | None
    team: str | None
    observed_before: int | None


@dataclass(slots=True)
class _Series:
    """What is remembered of a client and quota from window to window."""

    instances: list[dict[str, Any]]  # as the reports, those of the client
    reports: deque[ByteReport]  # since the oldest onset whose cause is still told
    memory: Memory = field(default_factory=Memory)
    usage: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)  # (start, usage of the bucket) by broker


@dataclass(frozen=True, slots=True)
class Fold:
    """Makes rows of quota_utilization of rows of `correlated`, in `mapInArrow`. `full_s`: QuotaWindow.full_s of
    clusters whose brokers are known."""

    when: TimeRange
    thresholds: Thresholds
    run: str
    full_s: Mapping[str, float]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of windows before `when` only leave their memory."""
        rows = (row for batch in batches for row in _rows_of(batch))
        made: list[tuple[Any, ...]] = []
        for _, of_client in groupby(rows, key=lambda row: (row.window.cluster, *row.window[3:5])):
            instances: list[dict[str, Any]] = []
            reports: deque[ByteReport] = deque()
            quotas: dict[tuple[str, ...], _Series] = {}
            for (_, quota), alike in groupby(of_client, key=lambda row: (row.window.window_start_ms, row.window[1:3])):
                series = quotas.setdefault(quota, _Series(instances, reports))
                of_window = [row for row in alike if not self._remember(series, row)]
                if of_window and (row := self._verdict(series, of_window)) is not None:
                    made.append(row)
                if len(made) >= _BATCH_ROWS:
                    yield from _batches(made)
                    made = []
        yield from _batches(made)

    def _remember(self, series: _Series, row: _Row) -> bool:
        """Keeps an instance or a report of bytes for all series of the client. Returns whether the row is one."""
        if row.instance is not None:
            series.instances.append(row.instance)
        if row.byte_report is not None:
            series.reports.append(ByteReport(**row.byte_report))
            oldest_ms = series.reports[-1].window_start_ms - CAUSE_WINDOWS * self.when.window_ms
            while series.reports[0].window_start_ms < oldest_ms:
                series.reports.popleft()
        return row.instance is not None or row.byte_report is not None

    def _verdict(self, series: _Series, rows: list[_Row]) -> tuple[Any, ...] | None:
        """Of one window of the series; None for one that is not reported."""
        start_ms = rows[0].window.window_start_ms
        for row in rows:
            usage = series.usage.setdefault(row.window.broker_id, deque(maxlen=MEMORY_WINDOWS))
            usage.append((start_ms, row.window.group_usage))
        brokers = [row.window for row in rows if is_worth_a_row(row.window)]
        if not brokers:
            return None
        software = self._software(series, start_ms)
        around = self._surroundings(series, rows[0], software[0])
        verdicts, series.memory = evaluate(brokers, around, series.memory, self.thresholds, self.when.window_ms)
        if start_ms < self.when.from_ms:
            return None
        worst = next(verdict for verdict in verdicts if verdict.is_worst)
        return self._row(worst, around.telemetry, rows[0], software, self._trend(series, worst.window))

    def _surroundings(self, series: _Series, row: _Row, software_name: str) -> Surroundings:
        columns, window = row.telemetry, row.window
        telemetry = Telemetry()
        if columns is not None:
            minutes = [ago * self.when.window_ms / 60_000 for ago in columns["lag_windows"]]
            trend = lag_per_min(minutes, columns["lag_records"])
            telemetry = Telemetry._make((*(columns[name] for name in _TELEMETRY), trend))
        changes: tuple[InstanceChange, ...] = ()
        onset, start_ms = series.memory.onset, window.window_start_ms
        if onset is not None and not onset.cause:
            since_ms = start_ms - (CAUSE_WINDOWS + 1) * self.when.window_ms
            if any(instance["first_ms"] >= since_ms for instance in series.instances):
                instances = [seen_instance(**instance) for instance in series.instances]
                changes = changes_before(instances, series.reports, start_ms, self.when.window_ms)
        return Surroundings(telemetry, software_name, changes, bool(row.observed_before))

    def _software(self, series: _Series, start_ms: int) -> tuple[str, str, int]:
        """Software of the instance that was seen last, and the number of instances. Those seen within an hour before
        the window's end count, because a muted client cannot push; those that terminated before the window do not."""
        end_ms = start_ms + self.when.window_ms
        alive = [
            instance
            for instance in series.instances
            if instance["first_ms"] < end_ms
            and instance["last_ms"] >= end_ms - INSTANCE_LOOKBACK_MS
            and (not instance["terminated"] or instance["last_ms"] >= start_ms)
        ]
        if not alive:
            return UNKNOWN, UNKNOWN, 0
        newest = max(alive, key=lambda instance: (instance["last_ms"], instance["instance"]))
        return newest["software_name"], newest["software_version"], len(alive)

    def _trend(self, series: _Series, window: Window) -> tuple[float | None, float | None]:
        """`eta_s` and `trend_per_min`, over the last ten windows at the broker."""
        start_ms = window.window_start_ms
        oldest_ms = start_ms - (MEMORY_WINDOWS - 1) * self.when.window_ms
        recent = [past for past in series.usage[window.broker_id] if past[0] >= oldest_ms]
        seconds = [(at_ms - start_ms) / 1000 for at_ms, _ in recent]
        return usage_trend(seconds, [rate for _, rate in recent], window.limit)

    def _row(
        self,
        verdict: Verdict,
        reported: Telemetry,
        row: _Row,
        software: tuple[str, str, int],
        trend: tuple[float | None, float | None],
    ) -> tuple[Any, ...]:
        window = verdict.window
        software_name, software_version, instances = software
        burst_credit = None
        if window.limit is not None and window.quota_key in BYTE_KEYS:
            full_s = self.full_s.get(window.cluster, _FULL_S)
            burst_credit = max(window.limit - window.group_last, 0.0) * full_s
        return (
            *(self.run, window.cluster, window.source, window.quota_key, window.window_start_ms // 1000),
            *(self.when.window_s, window.user, window.client_id, window.broker_id, window.matched_entity),
            *(window.bucket_user, window.bucket_client_id, window.limit, int(window.state != "unknown"), window.usage),
            *(window.group_usage, window.usage_p95, window.usage_max, verdict.utilization),
            *(verdict.utilization_p95, window.throttle_ms, window.muted_ms / 1000, verdict.client_throttle_ms_max),
            *(reported.request_latency_ms, reported.queue_time_ms, reported.rebalances, reported.records_lag),
            *(reported.lag_per_min, reported.records_failed, reported.records_retried, reported.outgoing_bytes),
            *(reported.incoming_bytes, instances),
            *(verdict.busiest_instance, verdict.busiest_instance_share, window.shared_with, verdict.culprit_user),
            *(verdict.culprit_client_id, verdict.culprit_share, window.implied_limit, row.team or UNOWNED),
            *(window.usage_rank, *trend, burst_credit, verdict.level, verdict.instant_level, verdict.reason),
            *(verdict.impact, verdict.impact_reason, verdict.cause, software_name, software_version, window.samples),
            int(window.window_start_ms + self.when.window_ms <= self.when.to_ms),
            *(getattr(window, name) for name in SUMMED),
        )


_FULL_S: Final = QuotaWindow().full_s
_BATCH_ROWS: Final = 5_000

_TEXT = pa.string()
_CODED = pa.dictionary(pa.int32(), pa.string())
_NUMBER = pa.float64()
# The columns of quota_utilization_staging, and their Arrow types.
_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "run": _CODED, "cluster": _CODED, "source": _CODED, "quota_key": _CODED, "window_start": pa.timestamp("s", "UTC"),
    "window_s": pa.uint32(), "user": _CODED, "client_id": _CODED, "broker_id": pa.int32(), "matched_entity": _CODED,
    "bucket_user": _CODED, "bucket_client_id": _CODED, "limit": _NUMBER, "limit_known": pa.uint8(), "usage": _NUMBER,
    "group_usage": _NUMBER, "usage_p95": _NUMBER, "usage_max": _NUMBER, "utilization": _NUMBER,
    "utilization_p95": _NUMBER, "throttle_ms_max": _NUMBER, "throttled_s": _NUMBER, "client_throttle_ms_max": _NUMBER,
    "request_latency_ms_max": _NUMBER, "queue_time_ms_max": _NUMBER, "rebalances": _NUMBER, "records_lag_max": _NUMBER,
    "records_lag_per_min": _NUMBER, "records_failed": _NUMBER, "records_retried": _NUMBER, "outgoing_bytes": _NUMBER,
    "incoming_bytes": _NUMBER, "instances": pa.uint32(), "busiest_instance": _TEXT, "busiest_instance_share": _NUMBER,
    "shared_with": pa.uint32(), "culprit_user": _CODED, "culprit_client_id": _CODED, "culprit_share": _NUMBER,
    "implied_limit": _NUMBER, "team": _CODED, "usage_rank": pa.uint32(), "eta_s": _NUMBER, "trend_per_min": _NUMBER,
    "burst_credit": _NUMBER, "level": _CODED, "instant_level": _CODED, "reason": _TEXT, "impact": _CODED,
    "impact_reason": _TEXT, "cause": _TEXT, "software_name": _CODED, "software_version": _CODED, "samples": pa.uint64(),
    "complete": pa.uint8(), **dict.fromkeys(SUMMED, pa.uint64()),
}  # fmt: skip
COLUMNS: Final = {name: kind for name, kind in _COLUMNS.items() if name != "run"}  # and those of quota_utilization


def _batches(rows: list[tuple[Any, ...]]) -> Iterator[pa.RecordBatch]:
    if rows:
        columns = zip(*rows, strict=True)
        arrays = [
            pa.array(values, _TEXT).dictionary_encode() if kind is _CODED else pa.array(values, kind)
            for kind, values in zip(_COLUMNS.values(), columns, strict=True)
        ]
        yield pa.record_batch(arrays, names=list(_COLUMNS))


def _rows_of(batch: pa.RecordBatch) -> Iterator[_Row]:
    columns = [column.to_pylist() for column in batch.columns]
    windows = map(Window, *columns[: len(Window._fields)])
    return map(_Row, windows, *columns[len(Window._fields) :])
