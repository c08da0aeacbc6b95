"""The report of quota-suggest: a table of rows, and the file of `headroom quotas plan | apply`."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from exporters.printable import printable
from quota_metrics.amounts import duration_text
from quota_metrics.config.entities import entity_of_names
from quota_metrics.config.quota_file import MAX_TEXT, DeclaredQuota, quota_file
from quota_metrics.suggestion.suggested_quotas import CHANGES
from spark_jobs.reports.report import Row, rows_report

_MOMENT = pa.timestamp("ms", "UTC")
_TYPES: dict[str, pa.DataType] = {
    "cluster": pa.string(),
    "source": pa.string(),
    "quota_key": pa.string(),
    "kind": pa.string(),  # quota_metrics.suggestion.suggested_quotas.Kind
    "entity": pa.string(),
    "user": pa.string(),  # of the entity, as in quota_limits
    "client_id": pa.string(),
    "made_at": _MOMENT,
    "from_time": _MOMENT,
    "to_time": _MOMENT,
    "limit": pa.float64(),  # in force; null: none
    "suggested_limit": pa.float64(),
    "clients": pa.int64(),  # buckets that the quota limits
    "broker_id": pa.int32(),  # the busiest one of the client that wants most
    "demand_low": pa.float64(),  # of that client: 99th percentile of five minutes, as recorded
    "demand_high": pa.float64(),  # of what it would have sent; null: not known
    "demand_source": pa.string(),
    "demand_peak": pa.float64(),
    **dict.fromkeys((f"utilization_{name}" for name in ("mean", "p95", "p99", "peak")), pa.float64()),
    "growth_per_week": pa.float64(),
    "throttled_before": pa.float64(),  # share of its five minutes, as recorded
    "days": pa.int32(),  # with usage
    "confidence": pa.string(),
    "throttled_share": pa.float64(),  # of the time, by the replay; null: not replayed
    "throttled_clients": pa.int64(),
    "replay_users": pa.list_(pa.string()),  # those that were or would have been throttled
    "replay_client_ids": pa.list_(pa.string()),
    "replay_before_s": pa.list_(pa.float64()),
    "replay_after_s": pa.list_(pa.float64()),
    "reason": pa.string(),
    "command": pa.string(),
}
COLUMNS = pa.schema(_TYPES)


def _replay(row: Row) -> str:
    """For how long clients were throttled, and would have been under the suggested limit."""
    throttled = zip(row["replay_client_ids"], row["replay_before_s"], row["replay_after_s"], strict=True)
    return "; ".join(
        f"{name or 'a client without an id'} was throttled for {duration_text(1000 * before)},"
        f" with the suggested limit for {duration_text(1000 * after)}"
        for name, before, after in throttled
    )


_TABLE = rows_report(
    COLUMNS,
    "Quotas that would fit",
    (
        *("cluster", "quota_key", "kind", "entity", "limit", "suggested_limit", "demand_low", "demand_high"),
        *("utilization_mean", "utilization_p99", "growth_per_week", "throttled_before", "throttled_share"),
        *("clients", "confidence", "reason", "replay", "command"),
    ),
    empty="No client has usage of a quota that could be suggested.",
    leave=(
        *("demand_low", "demand_high", "cluster", "utilization_mean", "throttled_before", "growth_per_week"),
        *("clients", "utilization_p99", "throttled_share", "confidence"),
    ),
    derived={"replay": _replay},
)


def to_yaml(rows: Sequence[Row]) -> str:
    """The file with all changes and their reasons as comments; findings change nothing and are left out.

    Raises ValueError for rows of several clusters: a file is of one."""
    clusters = sorted({row["cluster"] for row in rows})
    if len(clusters) > 1:
        raise ValueError(f"a file is of one cluster, choose one by --cluster: {', '.join(clusters)}")
    of_entity: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] in CHANGES and row["suggested_limit"] is not None:
            of_entity[row["user"], row["client_id"]].append(row)
    heading = "By headroom quotas suggest. Next: headroom quotas plan -f FILE"
    if rows:
        times = (f"{rows[0][name]:%Y-%m-%d %H:%M}" for name in ("from_time", "to_time"))
        heading = f"{printable(clusters[0])}: quotas for the usage from {' to '.join(times)} UTC\n{heading}"
    declared = []
    for names, changes in of_entity.items():
        said = "; ".join(f"{row['quota_key']}, confidence {row['confidence']}: {row['reason']}" for row in changes)
        values = {row["quota_key"]: row["suggested_limit"] for row in changes}
        declared.append(DeclaredQuota(entity_of_names(*names), values, comment=said[:MAX_TEXT]))
    return quota_file(declared, heading)


REPORT = replace(_TABLE, to_yaml=to_yaml)
