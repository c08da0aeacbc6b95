"""The schema on a ClickHouse cluster: the same SQL files, rendered by rule.

The database is a Replicated one, so that each statement reaches every node, also one that is away or replaced. A table
`points` becomes `points_local`, with a Replicated engine, and a Distributed table `points` on top. Rows are spread by
user and client id: all rows of a client are on one shard, and a join by client needs no other shard. The few rows of
tables without a client id are on the first shard.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

# A node that is away does not delay a statement: it catches up when it is back.
DDL_SETTINGS = {"distributed_ddl_output_mode": "none_only_active", "distributed_ddl_task_timeout": "120"}

_DATABASE = "{{database}}"  # statements stay templates
_NAME = rf"{re.escape(_DATABASE)}\.(\w+)"
_TABLE_NAME = re.compile(rf"{_NAME}\b")
_CREATE_TABLE = re.compile(rf"CREATE TABLE IF NOT EXISTS {_NAME}(?: AS {_NAME}$)?")
_ALTER_TABLE = re.compile(rf"ALTER TABLE {_NAME}")
_DROP_TABLE = re.compile(rf"DROP TABLE IF EXISTS {_NAME}$")
_FEED = re.compile(rf"CREATE MATERIALIZED VIEW IF NOT EXISTS {_NAME} TO |ALTER TABLE {_NAME} MODIFY QUERY")
_VIEW = re.compile(r"CREATE (OR REPLACE VIEW|VIEW IF NOT EXISTS) ")
_DROP_VIEW = re.compile(r"DROP VIEW IF EXISTS ")
_ENGINE = re.compile(r"^ENGINE = (\w*MergeTree)\b", re.MULTILINE)
_COLUMN = re.compile(r"`(\w+)` ")
_WINDOW = re.compile(r"\bnon_replicated_deduplication_window = (\d+)")
_SETTINGS_AT_THE_END = re.compile(r"\nSETTINGS [^\n()]+$")
_FIRST_SHARD = "0"
_JOIN = re.compile(r"\bJOIN\b|\bIN \(")


def bootstrap(cluster: str, database: str) -> str:
    """The statement that creates the database on every node."""
    return (
        f"CREATE DATABASE IF NOT EXISTS {database} ON CLUSTER {quoted(cluster)}"
        f" ENGINE = Replicated('/clickhouse/databases/{database}', '{{shard}}', '{{replica}}')"
    )


def quoted(cluster: str) -> str:
    """A cluster's name as a string literal."""
    return "'" + cluster.replace("\\", "\\\\").replace("'", "\\'") + "'"


def replicas_behind(cluster: str, table: str) -> str:
    """A query: how many replicas of a table of `{database:String}` are away or lack rows. It fails when a node does
    not answer."""
    return (
        f"SELECT count() AS behind FROM clusterAllReplicas({quoted(cluster)}, system.replicas)"  # noqa: S608 constants of ours
        f" WHERE database = {{database:String}} AND table = '{table}_local'"
        " AND (is_readonly OR active_replicas < total_replicas OR inserts_in_queue > 0 OR log_pointer <= log_max_index)"
    )


def replicated(statement: str) -> str:
    """The statement for a Replicated database of one shard: each replica has all rows, so that tables have Replicated
    engines and need no Distributed ones on top."""
    return _ENGINE.sub(r"ENGINE = Replicated\1", _with_window(statement))


class ClusterSchema:
    """Renders the statements of all migrations, in order: what a statement becomes depends on the tables before it."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._keys: dict[str, str] = {}  # sharding key of each table

    def render(self, statements: Iterable[str]) -> tuple[str, ...]:
        """Raises ValueError for a statement of a kind that has no rule."""
        return tuple(rendered for statement in statements for rendered in self._render_one(statement))

    def _render_one(self, statement: str) -> list[str]:
        if _DROP_VIEW.match(statement):
            return [statement]
        if _VIEW.match(statement):
            return [self._with_join_settings(statement)]
        if _FEED.match(statement):
            return [self._with_local_names(statement)]
        if match := _CREATE_TABLE.match(statement):
            return self._create_table(statement, *match.groups())
        if match := _ALTER_TABLE.match(statement):
            on_top = [self._on_top(match[1])] if " COLUMN " in statement else []
            return [_with_window(self._with_local_names(statement)), *on_top]
        if match := _DROP_TABLE.match(statement):
            self._keys.pop(match[1], None)
            return [f"DROP TABLE IF EXISTS {_DATABASE}.{name} SYNC" for name in (match[1], f"{match[1]}_local")]
        raise ValueError(f"no rule for a cluster: {statement[:80]!r}")

    def _create_table(self, statement: str, table: str, model: str | None) -> list[str]:
        if model is None and not _ENGINE.search(statement):
            raise ValueError(f"no rule for a cluster: the engine of {table}")
        columns = set(_COLUMN.findall(statement))
        if model:
            self._keys[table] = self._keys[model]
        elif {"cluster", "client_id"} <= columns:
            user = "user" if "user" in columns else "principal"
            self._keys[table] = f"cityHash64(cluster, {user}, client_id)"
        else:
            self._keys[table] = _FIRST_SHARD
        return [self._with_local_names(replicated(statement)), self._on_top(table)]

    def _on_top(self, table: str) -> str:
        """Replaced as a whole: it holds no rows, and takes the columns of the table below."""
        below = f"{table}_local"
        return (
            f"CREATE OR REPLACE TABLE {_DATABASE}.{table} AS {_DATABASE}.{below}"
            f" ENGINE = Distributed({quoted(self._cluster)}, {_DATABASE}, {below}, {self._keys[table]})"
        )

    def _with_local_names(self, statement: str) -> str:
        return _TABLE_NAME.sub(lambda name: f"{name[0]}_local" if name[1] in self._keys else name[0], statement)

    def _with_join_settings(self, statement: str) -> str:
        """Tables that are sharded by client are joined on each shard; with others the smaller side is sent to all."""
        if not _JOIN.search(statement):
            return statement
        tables = {name for name in _TABLE_NAME.findall(statement) if name in self._keys}
        mode = "local" if all(self._keys[table] != _FIRST_SHARD for table in tables) else "global"
        start = "," if _SETTINGS_AT_THE_END.search(statement) else "\nSETTINGS"
        return f"{statement}{start} distributed_product_mode = '{mode}'"


def with_windows(tables: Mapping[str, str]) -> Iterator[str]:
    """Statements for the tables whose replicas share their rows (ClickHouse Cloud makes them so) and that have the
    window of a plain table, which does nothing there. `tables`: their engines with settings, by name."""
    for name, engine in tables.items():
        window = _WINDOW.search(engine)
        if window and engine.startswith("Shared") and "replicated_deduplication_window_seconds" not in engine:
            yield f"ALTER TABLE {_DATABASE}.{name} MODIFY SETTING {_with_window(window[0])}"


def _with_window(statement: str) -> str:
    """Batches are known again for a week, as long as a spool may hold them back."""
    return _WINDOW.sub(
        r"replicated_deduplication_window = \1, replicated_deduplication_window_seconds = 604800", statement
    )
