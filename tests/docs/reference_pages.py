"""Writes docs/settings.md, docs/metrics.md, docs/tables.md and the colours of levels on pages: `make docs`."""

from __future__ import annotations

import itertools
import re
import tempfile
from pathlib import Path

from exporters.clickhouse.connection import Endpoint
from exporters.self_metrics import CATALOGUE
from headroom.config.reference import as_markdown
from quota_metrics.amounts import STYLES
from tests.docs.column_glossary import COLUMNS
from tests.kit.clickhouse import connected, running_clickhouse

DOCS = Path(__file__).parents[2] / "docs"
STYLESHEET = Path(__file__).parents[2] / "headroom/web/static/headroom.css"

_LEVELS = re.compile(r"(?<=\*/\n)[^/]*(?=/\* end of levels \*/)")

_COLUMNS = """
SELECT table, t.engine, t.comment, extract(t.engine_full, 'toInterval(\\w+\\(\\d+)') AS kept, name, type, c.comment
FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
WHERE c.database = 'headroom' AND table != 'schema_migrations' AND NOT startsWith(table, '.')
ORDER BY t.engine LIKE '%View', table, position
"""


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
    for (table, engine, comment, kept), columns in itertools.groupby(rows, lambda row: row[:4]):
        lines += [
            "",
            f"## {table}",
            "",
            " ".join(part for part in (f"{engine}.", comment, _kept(kept)) if part),
            "",
            "| column | type | what |",
            "|---|---|---|",
        ]
        for *_, name, kind, what in columns:
            lines.append(f"| `{name}` | `{kind}` | {(what or COLUMNS.get(name, '')).replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def _kept(interval: str) -> str:
    """Of `Day(14`, the beginning of a TTL's interval; nothing without one."""
    unit, _, number = interval.partition("(")
    return f"Rows are kept for {number} {unit.lower()}{'s' if number != '1' else ''}." if number else ""


def stylesheet(text: str) -> str:
    """The pages' stylesheet with the colours of levels."""
    light = " ".join(f"--{level}: {style.light};" for level, style in STYLES.items())
    dark = " ".join(f"--{level}: {style.dark};" for level, style in STYLES.items())
    rules = [f".{level} {{ color: var(--{level}); }} .bar .{level} {{ fill: var(--{level}); }}" for level in STYLES]
    root = [f":root {{ {light} }}", f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"]
    return _LEVELS.sub("\n".join([*root, *rules, ""]), text, count=1)


def main() -> None:
    STYLESHEET.write_text(stylesheet(STYLESHEET.read_text()))
    (DOCS / "settings.md").write_text(as_markdown())
    (DOCS / "metrics.md").write_text(metrics_page())
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        (DOCS / "tables.md").write_text(tables_page(server.writer))


if __name__ == "__main__":
    main()
