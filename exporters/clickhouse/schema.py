"""The SQL files of deploy/clickhouse as migrations; table schema_migrations records which were applied.

Migration 1 is the schema: the files of deploy/clickhouse/schema, in the order of their names. Later ones change it:
deploy/clickhouse/migrations/NNNN_name.sql, from 2 on. All files are templates (`filled`): `{{database}}` is the
database, `{{columns_of_NAME}}` the text of deploy/clickhouse/columns/NAME.sql, which tables and views of the same rows
share, `{{settings_of_views}}` what views that join or aggregate set (profile.py); other names are values of
the caller.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from exporters.clickhouse.profile import OF_VIEWS

RECORD_TABLE = (
    "CREATE TABLE IF NOT EXISTS {{database}}.schema_migrations"
    " (`version` UInt32, `name` String, `applied_at` DateTime64(3, 'UTC') DEFAULT now64(3), `checksum` String)"
    "\nENGINE = ReplacingMergeTree(applied_at) ORDER BY version"
)
APPLIED = "SELECT version, checksum FROM {{database}}.schema_migrations FINAL"

_DIRECTORY = files("deploy") / "clickhouse"
_OURS = {
    "database": "{{database}}",
    "settings_of_views": ", ".join(f"{name} = {value}" for name, value in OF_VIEWS.items()),
}
_NAME = re.compile(r"\{\{(\w+)\}\}")
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_EXPIRING = re.compile(r"CREATE TABLE IF NOT EXISTS \{\{database\}\}\.(\w+)\b.*^TTL ", re.DOTALL | re.MULTILINE)
_COMMENT_LINE = re.compile(r"^\s*--.*$", re.MULTILINE)
_END_OF_STATEMENT = re.compile(r";\s*$", re.MULTILINE)


def filled(template: str, values: Mapping[str, object]) -> str:
    """`template` with `str(values[name])` for each `{{name}}`, verbatim. Raises KeyError for a name without a value."""
    return _NAME.sub(lambda name: str(values[name[1]]), template)


class Migration(NamedTuple):
    """Statements that name the database `{{database}}`; repeatable, because a crash leaves the migration unrecorded."""

    version: int
    name: str
    statements: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """Of the statements with their values: comments and empty lines may change."""
        return sha256("\n".join(self.statements).encode()).hexdigest()

    def record(self) -> str:
        """The statement that records it as applied."""
        values = f"({self.version}, '{self.name}', '{self.checksum}')"
        return f"INSERT INTO {{{{database}}}}.schema_migrations (version, name, checksum) VALUES {values}"  # noqa: S608


class ChangedMigrationError(Exception):
    """A migration was applied with other statements than this release has."""


def migrations(values: Mapping[str, object], directory: Traversable = _DIRECTORY) -> list[Migration]:
    """All migrations, in order.

    Raises KeyError when a template names a value that `values` lacks, ValueError when a file of `migrations` is not
    named NNNN_name.sql or numbers repeat.
    """
    columns = {
        f"columns_of_{file.name.removesuffix('.sql')}": filled(
            _COMMENT_LINE.sub("", file.read_text(encoding="utf-8")).strip("\n"), values
        )
        for file in _sql_files(directory / "columns")
    }
    all_values = {**values, **_OURS, **columns}
    texts = [(1, "schema", "\n".join(_schema_texts(directory)))]
    folder = directory / "migrations"
    for file in folder.iterdir() if folder.is_dir() else ():
        match = _FILE_NAME.fullmatch(file.name)
        if match is None:
            raise ValueError(f"cannot read migration {file.name!r}: its name is not NNNN_name.sql")
        texts.append((int(match[1]), match[2], file.read_text(encoding="utf-8")))
    versions = sorted(version for version, _, _ in texts)
    if len(set(versions)) != len(versions):
        raise ValueError(f"cannot order {len(texts)} migrations: duplicate number in {versions}")
    return [Migration(version, name, statements(filled(text, all_values))) for version, name, text in sorted(texts)]


def pending(all_migrations: list[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """The migrations that are not in `applied` (version to checksum), in order. Raises ChangedMigrationError."""
    changed = [f"{m.version:04}_{m.name}" for m in all_migrations if applied.get(m.version, m.checksum) != m.checksum]
    if changed:
        raise ChangedMigrationError(
            f"the database was made by another release: {', '.join(changed)} had other statements when it was applied"
        )
    return [migration for migration in all_migrations if migration.version not in applied]


def expiring_tables() -> list[str]:
    """Names of the tables whose rows expire, sorted."""
    texts = (statement for text in _schema_texts(_DIRECTORY) for statement in statements(text))
    return sorted(table[1] for table in map(_EXPIRING.match, texts) if table)


def statements(text: str) -> tuple[str, ...]:
    """Splits an SQL file: statements end with a semicolon at the end of a line, comments have their own lines."""
    without_comments = _COMMENT_LINE.sub("", text)
    return tuple(part.strip() for part in _END_OF_STATEMENT.split(without_comments) if part.strip())


def _schema_texts(directory: Traversable) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in _sql_files(directory / "schema")]


def _sql_files(folder: Traversable) -> list[Traversable]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted((file for file in files if file.name.endswith(".sql")), key=lambda file: file.name)
