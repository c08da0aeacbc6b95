"""The numbered SQL files of deploy/clickhouse as migrations; headroom.schema_migrations records applied ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import NamedTuple

from exporters.clickhouse.connection import DATABASE

# Run before any migration: creates the table that records them.
BOOTSTRAP = (
    f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
    f"CREATE TABLE IF NOT EXISTS {DATABASE}.schema_migrations"
    " (`version` UInt32, `name` String, `applied_at` DateTime64(3, 'UTC') DEFAULT now64(3))"
    " ENGINE = ReplacingMergeTree(applied_at) ORDER BY version",
)

APPLIED = f"SELECT version FROM {DATABASE}.schema_migrations"  # noqa: S608 a constant of ours

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_COMMENT_LINE = re.compile(r"^\s*--.*$", re.MULTILINE)
_END_OF_STATEMENT = re.compile(r";\s*$", re.MULTILINE)


class Migration(NamedTuple):
    """One SQL file. Its statements are repeatable, because a crash in the middle leaves it unrecorded."""

    version: int
    name: str
    statements: tuple[str, ...]

    def record(self) -> str:
        """The statement that records it as applied."""
        return f"INSERT INTO {DATABASE}.schema_migrations (version, name) VALUES ({self.version}, '{self.name}')"  # noqa: S608 ours


def migrations() -> list[Migration]:
    """All migrations, in order. Raises ValueError when a file is not named NNNN_name.sql or numbers repeat."""
    found = sorted(
        _migration(file.name, file.read_text(encoding="utf-8"))
        for file in (files("deploy") / "clickhouse").iterdir()
        if file.name.endswith(".sql")
    )
    versions = [migration.version for migration in found]
    if len(set(versions)) != len(versions):
        raise ValueError(f"cannot order {len(found)} migrations: duplicate number in {versions}")
    return found


def pending(applied: Iterable[int]) -> list[Migration]:
    """The migrations that are not in `applied`, in order."""
    done = set(applied)
    return [migration for migration in migrations() if migration.version not in done]


def statements(text: str) -> tuple[str, ...]:
    """Splits an SQL file: statements end with a semicolon at the end of a line, comments have their own lines."""
    without_comments = _COMMENT_LINE.sub("", text)
    return tuple(part.strip() for part in _END_OF_STATEMENT.split(without_comments) if part.strip())


def _migration(file_name: str, text: str) -> Migration:
    match = _FILE_NAME.fullmatch(file_name)
    if match is None:
        raise ValueError(f"cannot read migration {file_name!r}: its name is not NNNN_name.sql")
    return Migration(int(match[1]), match[2], statements(text))
