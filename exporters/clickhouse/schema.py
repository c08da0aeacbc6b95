"""The numbered SQL files of deploy/clickhouse as migrations; headroom.schema_migrations records applied ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from exporters.clickhouse.connection import DATABASE

# Run before any migration: creates the table that records them. The first release recorded no checksums.
CREATE_DATABASE = "CREATE DATABASE IF NOT EXISTS {database}"
RECORD_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {DATABASE}.schema_migrations"
    " (`version` UInt32, `name` String, `applied_at` DateTime64(3, 'UTC') DEFAULT now64(3))"
    "\nENGINE = ReplacingMergeTree(applied_at) ORDER BY version",
    f"ALTER TABLE {DATABASE}.schema_migrations ADD COLUMN IF NOT EXISTS `checksum` String",
)

APPLIED = f"SELECT version, checksum FROM {DATABASE}.schema_migrations FINAL"  # noqa: S608 a constant of ours

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_EXPIRING = re.compile(rf"CREATE TABLE IF NOT EXISTS {DATABASE}\.(\w+)\b.*^TTL ", re.DOTALL | re.MULTILINE)
_COMMENT_LINE = re.compile(r"^\s*--.*$", re.MULTILINE)
_END_OF_STATEMENT = re.compile(r";\s*$", re.MULTILINE)


class Migration(NamedTuple):
    """One SQL file. Its statements are repeatable, because a crash in the middle leaves it unrecorded."""

    version: int
    name: str
    statements: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """Of the statements: comments and empty lines may change."""
        return sha256("\n".join(self.statements).encode()).hexdigest()

    def record(self) -> str:
        """The statement that records it as applied."""
        values = f"({self.version}, '{self.name}', '{self.checksum}')"
        return f"INSERT INTO {DATABASE}.schema_migrations (version, name, checksum) VALUES {values}"  # noqa: S608 ours


class ChangedMigrationError(Exception):
    """A migration was applied with other statements than this release has."""


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


def pending(applied: Mapping[int, str]) -> list[Migration]:
    """The migrations that are not in `applied` (version to checksum, "" when it is not known), in order.

    Raises ChangedMigrationError.
    """
    found = migrations()
    changed = [f"{m.version:04}_{m.name}" for m in found if applied.get(m.version) not in (None, "", m.checksum)]
    if changed:
        raise ChangedMigrationError(
            f"the database was made by another release: {', '.join(changed)} had other statements when it was applied"
        )
    return [migration for migration in found if migration.version not in applied]


def expiring_tables() -> list[str]:
    """Names of the tables whose rows expire, sorted."""
    found = (_EXPIRING.match(statement) for migration in migrations() for statement in migration.statements)
    return sorted({table[1] for table in found if table})


def statements(text: str) -> tuple[str, ...]:
    """Splits an SQL file: statements end with a semicolon at the end of a line, comments have their own lines."""
    without_comments = _COMMENT_LINE.sub("", text)
    return tuple(part.strip() for part in _END_OF_STATEMENT.split(without_comments) if part.strip())


def _migration(file_name: str, text: str) -> Migration:
    match = _FILE_NAME.fullmatch(file_name)
    if match is None:
        raise ValueError(f"cannot read migration {file_name!r}: its name is not NNNN_name.sql")
    return Migration(int(match[1]), match[2], statements(text))
