"""Writes docs/settings.md, docs/metrics.md, docs/tables.md and the colours of levels on pages: `make docs`."""

import itertools
import re
import tempfile
from pathlib import Path

from exporters.clickhouse.connection import Endpoint
from exporters.self_metrics import CATALOGUE
from headroom.config.reference import as_markdown
from quota_metrics.amounts import STYLES
from tests.kit.clickhouse import connected, running_clickhouse

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
STYLESHEET = Path(__file__).parents[2] / "headroom/web/static/headroom.css"

_LEVELS = re.compile(r"(?<=\*/\n)[^/]*(?=/\* end of levels \*/)")

_COLUMNS = """
SELECT table, t.engine, t.comment, extract(t.engine_full, 'toInterval(\\w+\\(\\d+)') AS kept, name, type, c.comment
FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
WHERE c.database = 'headroom' AND table != 'schema_migrations' AND NOT startsWith(table, '.')
ORDER BY t.engine LIKE '%View', table, position
"""

# Columns that mean the same in every table, where the DDL has no comment.
COLUMNS = {
    "attributes": "data point attributes, keys in snake_case",
    "bounds": "upper bounds of the buckets",
    "broker_id": "Kafka's node id; -1: none",
    "bucket_client_id": "client id tag of that metric",
    "bucket_counts": "values in each bucket",
    "bucket_user": "user tag of the metric under which the broker meters",
    "bytes": "bytes of the interval, or of the request as received",
    "client_id": "client.id of the requests",
    "client_instance_id": "KIP-714's id of one running client",
    "cluster": "name of the Kafka cluster",
    "complete": "whether the whole window was observed",
    "compression": "codec of the push",
    "computed_at": "when it was computed",
    "count": "number of values",
    "culprit_client_id": "client that uses most of the bucket",
    "error": "why it failed, empty otherwise",
    "finished_at": "end",
    "first_seen": "first push or subscription request",
    "fixed_in": "first version without it",
    "flags": "OTLP data point flags, bit 0: no recorded value",
    "gateway_id": "the gateway that observed it, empty: none",
    "incoming_bytes": "as the client reported",
    "instances": "client instances",
    "instant_level": "the level without hysteresis",
    "interval_ms": "length of the interval that the row covers",
    "ip": "address of an IP quota entity",
    "job": "name of the job",
    "kind": "OTLP kind of the metric",
    "last_seen": "last push or subscription request",
    "limit": "the limit in force; NULL: no quota applies",
    "limit_known": "1 when the limit was observed, also when there is none",
    "made_at": "when the forecast was made",
    "matched_entity": "the quota entity that won, as text",
    "max": "largest value",
    "metric": "OTLP metric name, verbatim",
    "min": "smallest value",
    "minute": "start of the minute",
    "muted_ms": "muted time, see DECISIONS: What usage of a window is",
    "neg_counts": "of an exponential histogram",
    "neg_offset": "of an exponential histogram",
    "observed_at": "when Headroom saw it",
    "outgoing_bytes": "as the client reported",
    "points": "data points",
    "pos_counts": "of an exponential histogram",
    "pos_offset": "of an exponential histogram",
    "principal": "user name of the connection; claimed:NAME when an OTLP sender was not authenticated",
    "pushes": "accepted pushes",
    "quantiles": "of a summary",
    "quota_key": "Kafka's quota key, producer_byte_rate and so on",
    "rate": "Kafka's window rate at ts",
    "reason": "the level in words",
    "received_at": "when Headroom received it",
    "resource": "OTLP resource attributes",
    "rows": "rows",
    "records_lag_max": "records that the consumer is behind in its worst partition, as it reported",
    "records_retried": "records that the producer sent again, as it reported",
    "rows_in": "rows read",
    "rows_out": "rows written",
    "run": "id of the run",
    "run_id": "id of the run that wrote the row",
    "run_version": "orders runs: the newest row counts",
    "samples": "seconds with a value",
    "scale": "of an exponential histogram",
    "scope_name": "OTLP instrumentation scope",
    "series_id": "id of the time series, joins series",
    "since": "first version with the issue",
    "software_name": "client software, from ApiVersions",
    "software_version": "version of that software",
    "source": "gateway: read off the wire; jmx: measured by the broker",
    "source_address": "address of the client",
    "staged_at": "when the row was staged",
    "started_at": "start",
    "stats": "figures of the run",
    "status": "state of the run",
    "subscription_id": "KIP-714 subscription id, 0 for OTLP",
    "sum": "sum of the values",
    "temporality": "OTLP aggregation temporality",
    "terminated": "1 after the last push of the instance",
    "terminating": "the last push of the instance",
    "throttle_ms": "longest throttle time announced in the interval",
    "throttled_requests": "responses with a throttle time",
    "transport": "how it came",
    "ts": "time of the value",
    "uncompressed_bytes": "bytes after decompression",
    "unit": "OTLP unit",
    "updated_at": "when the row was written",
    "usage": "mean rate of this client on the worst broker",
    "usage_max": "largest rate",
    "usage_p95": "95th percentile of the rate",
    "busiest_instance": "the client instance that reports most of the bytes, where several share the client id",
    "busiest_instance_share": "its share of what all instances of the client report",
    "user": "principal name; '' or <default> as in quota entities",
    "valid_from": "from when on the value holds",
    "value": "value",
    "window_from": "start of the range of the run",
    "window_s": "length of the window in seconds",
    "window_start": "start of the window, on the epoch grid",
    "window_to": "end of the range of the run",
    "zero_count": "of an exponential histogram",
    "zero_threshold": "of an exponential histogram",
}


def metrics_page() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Written by `make docs` from the catalogue (exporters/self_metrics.py). What `/metrics` of `--http` exposes.",
        "",
        "| metric | labels | what |",
        "|---|---|---|",
    ]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {labels} | {metric.help.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def tables_page(server: Endpoint) -> str:
    """docs/tables.md, from the comments of a server's tables and views."""
    client = connected(server)
    rows = client.query(_COLUMNS).result_rows
    client.close()
    lines = [
        "# Tables and views",
        "",
        "Written by `make docs` from the comments in deploy/clickhouse. Database `headroom`.",
        "Read ReplacingMergeTree and AggregatingMergeTree tables with `FINAL`, or by the views.",
        "`store.retention_days` changes how long rows are kept.",
    ]
    for (table, engine, comment, interval), columns in itertools.groupby(rows, lambda row: row[:4]):
        unit, _, number = interval.partition("(")  # `Day(14`, or nothing
        kept = f"Rows are kept for {number} {unit.lower()}{'s' if number != '1' else ''}." if number else ""
        lines += [
            "",
            f"## {table}",
            "",
            " ".join(part for part in (f"{engine}.", comment, kept) if part),
            "",
            "| column | type | what |",
            "|---|---|---|",
        ]
        for *_, name, kind, what in columns:
            lines.append(f"| `{name}` | `{kind}` | {(what or COLUMNS.get(name, '')).replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def stylesheet(text: str) -> str:
    """The pages' stylesheet with the colours of levels."""
    light = " ".join(f"--{level}: {style.light};" for level, style in STYLES.items())
    dark = " ".join(f"--{level}: {style.dark};" for level, style in STYLES.items())
    rules = [f".{level} {{ color: var(--{level}); }} .bar .{level} {{ fill: var(--{level}); }}" for level in STYLES]
    root = [f":root {{ {light} }}", f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"]
    return _LEVELS.sub("\n".join([*root, *rules, ""]), text, count=1)


def main() -> None:
    STYLESHEET.write_text(stylesheet(STYLESHEET.read_text()))
    (DOCS / "settings.md").write_text(as_markdown())
    (DOCS / "metrics.md").write_text(metrics_page())
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        (DOCS / "tables.md").write_text(tables_page(server.writer))


if __name__ == "__main__":
    main()
