"""Rows into ClickHouse and queries out of it: one Store for the embedded engine and for a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters.clickhouse import schema
from exporters.clickhouse.embedded import Engine, EngineError, quote_name
from exporters.clickhouse.errors import code_and_message

# All explicit: some are defaults of newer servers only. Our batches are big, so async_insert brings nothing and
# would answer before it wrote. The dependent views are those that operators may hang on our tables.
_INSERT_SETTINGS = {
    "async_insert": "0",
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
}

# What ClickHouse says of rows that it can never take (src/Common/ErrorCodes.cpp): not parsed, wrong type, out of
# range, no such column. Everything else may be mended while the rows wait.
_PERMANENT_CODES = frozenset(
    (
        6,
        8,
        10,
        16,
        20,
        25,
        26,
        27,
        32,
        33,
        34,
        38,
        41,
        43,
        44,
        50,
        53,
        69,
        70,
        72,
        117,
        131,
        190,
        321,
        349,
        376,
        508,
        691,
    )
)

# ValueError: what clickhouse-connect says in the handshake with something that is no ClickHouse.
_FAILURES = (EngineError, ClickHouseError, OSError, ValueError)


class TransientWriteError(Exception):
    """The same rows may be written later: the store is away, full or busy, or somebody must mend it."""


class PermanentWriteError(Exception):
    """The same rows will never be accepted: their types or values do not fit the table."""


class QueryError(Exception):
    """A query or statement failed; the message is ClickHouse's."""


class Store:
    """The ClickHouse that all is written to. One thread inserts; queries may come from others."""

    def __init__(self, connect: Callable[[], Client], engine: Engine | None) -> None:
        self.engine = engine
        self._connect = connect
        self._client: Client | None = None

    @classmethod
    def embedded(cls, path: Path) -> Store:
        """The engine in this process, over a directory. One process per directory and one directory per process.

        Raises OSError when it cannot be opened.
        """
        engine = Engine(path)
        return cls(lambda: clickhouse_connect.get_client(**engine.client_options()), engine)

    @classmethod
    def server(cls, url: str, password: str) -> Store:
        """A ClickHouse server, `http(s)://user@host:8123/headroom`. Connects at first use.

        Raises ValueError when the URL is of another form.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"cannot use {url!r} as ClickHouse: it is not http(s)://user@host:port/headroom")
        if parts.path.strip("/") not in ("", schema.DATABASE):
            raise ValueError(f"cannot use {url!r} as ClickHouse: the database is {schema.DATABASE}")
        options: dict[str, Any] = {
            "interface": parts.scheme,
            "host": parts.hostname,
            "port": parts.port or (8443 if parts.scheme == "https" else 8123),
            "username": unquote(parts.username or "default"),
            "password": password,
            "autogenerate_session_id": False,  # a session takes one query at a time
        }
        return cls(lambda: clickhouse_connect.get_client(**options), None)

    def migrate(self) -> None:
        """Applies the migrations that are missing. Raises TransientWriteError, PermanentWriteError."""
        with self._write_errors("cannot apply the schema"):
            client = self._connected()
            for statement in schema.BOOTSTRAP:
                client.command(statement)
            applied = [int(row[0]) for row in client.query(schema.APPLIED).result_rows]
            for migration in schema.pending(applied):
                for statement in (*migration.statements, migration.record()):
                    client.command(statement)

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        """Writes rows into a table of database headroom; durable when it returns.

        The columns of `rows` are named as the table's; those left out take their defaults. Types:
        UUID is `fixed_size_binary(16)`, big endian; DateTime64(3) is `timestamp('ms', 'UTC')`; DateTime is
        `timestamp('s', 'UTC')`; Enum8 and LowCardinality(String) are strings, at best dictionary-encoded (any column
        may be); Map is `map_(string, string)`; Nullable takes null. Nothing else is converted.

        `token` names this batch of this table for ever: the same rows under the same token count once, however
        often they are sent. One token may serve several tables. Keep a batch at or below a million rows, so that
        it is one block.

        Raises TransientWriteError and PermanentWriteError, and nothing else for what the store does.
        """
        settings = {**_INSERT_SETTINGS, "insert_deduplication_token": token}
        name, block = f"{schema.DATABASE}.{table}", _arrow_stream(rows)
        with self._write_errors(f"cannot write {rows.num_rows} rows to {name}"):
            if self.engine is not None:
                columns = ", ".join(quote_name(column) for column in rows.column_names)
                with self.engine.handle(settings) as handle:
                    handle.insert(f"INSERT INTO {name} ({columns})", "ArrowStream", [block])
            else:
                client = self._connected()
                known = {key: value for key, value in settings.items() if key in client.server_settings}
                client.raw_insert(name, rows.column_names, block, known, "ArrowStream")

    def command(self, sql: str, parameters: Mapping[str, Any]) -> None:
        """Runs a statement without rows. Raises TransientWriteError, PermanentWriteError."""
        with self._write_errors("cannot run a statement"):
            self._connected().command(sql, parameters=dict(parameters))

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """All rows of a small result as Python values. Tables are spelled `headroom.name`. Raises QueryError."""
        try:
            return self._connected().query(sql, parameters=dict(parameters or {})).result_rows
        except _FAILURES as exc:
            # What a failed query left in an embedded handle would begin the next result
            # (exporters/clickhouse/embedded.py).
            self._disconnect()
            raise QueryError(code_and_message(str(exc))[1]) from exc

    def close(self) -> None:
        """Closes; the embedded directory is free for another process afterwards."""
        self._disconnect()
        if self.engine is not None:
            self.engine.close()

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextlib.contextmanager
    def _write_errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as exc:
            self._disconnect()
            code, message = code_and_message(str(exc))
            kind = PermanentWriteError if code in _PERMANENT_CODES else TransientWriteError
            raise kind(f"{failure}: {message}") from exc


def _arrow_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
