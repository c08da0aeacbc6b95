"""Whether each table and view of the schema can be read.

A view breaks when a table below it is changed by hand, or on a server of another release: else pages and jobs would
find out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from exporters.clickhouse.schema import Migration

_CREATED = re.compile(r"CREATE (TABLE|VIEW) IF NOT EXISTS \{\{database\}\}\.(\w+)")


def reading_queries(migrations: Iterable[Migration]) -> Iterator[tuple[str, str]]:
    """What is read, and a query that reads no row of it: one for all tables, one for each view.

    ClickHouse resolves the columns of a view and of all below it, and runs nothing.
    """
    statements = (statement for migration in migrations for statement in migration.statements)
    created = [match.groups() for match in map(_CREATED.match, statements) if match]
    tables = [name for kind, name in created if kind == "TABLE"]
    yield "the tables", " UNION ALL ".join(f"SELECT 1 FROM {name} LIMIT 0" for name in tables)  # noqa: S608
    for kind, name in created:
        if kind == "VIEW":
            yield f"view {name}", f"SELECT * FROM {name} LIMIT 0"  # noqa: S608
