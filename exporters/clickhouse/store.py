"""What the storage process asks of ClickHouse: the schema, durable inserts, and whether rows are there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from exporters.clickhouse import stored_rows
from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.cluster import replicas_behind
from exporters.clickhouse.connection import ANY_DATABASE, Endpoint
from exporters.clickhouse.errors import StoreError, StoreTooOldError, is_permanent
from exporters.clickhouse.migrate import SchemaError, apply_schema
from exporters.clickhouse.options import StoreOptions
from exporters.clickhouse.schema import ChangedMigrationError

_SINGLE = StoreOptions()
_TIMEOUT_S = 300.0

_CHECK = "SELECT count() AS found FROM write_checks WHERE token = {token:String}"


class WriteError(Exception):
    """Rows or a statement were not written. `code`: ClickHouse's error code, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class TransientWriteError(WriteError):
    """A retry may succeed: the store is unreachable, full, busy or misconfigured."""


class UnsupportedServerError(TransientWriteError):
    """The server is too old for the schema, or its database cannot be used; a retry succeeds once that is mended."""


class PermanentWriteError(WriteError):
    """A retry cannot succeed: types or values of the rows do not fit the table."""


class QueryError(Exception):
    """A query or statement failed; the message is ClickHouse's."""


class Store:
    """The ClickHouse server or cluster that the storage process writes to, from one thread. Connects at first use.

    `endpoints`: one server, or nodes of one cluster. After a failure the next attempt goes to the next node.
    """

    def __init__(self, *endpoints: Endpoint, options: StoreOptions = _SINGLE) -> None:
        self._options = options
        self._clickhouse = ClickHouse(endpoints, _TIMEOUT_S, options.client_settings(), compression=options.compression)

    def migrate(self, values: Mapping[str, object] = MappingProxyType({})) -> None:
        """Applies missing migrations. `values`: what the templates of the schema name beside the database.

        Raises UnsupportedServerError, other TransientWriteErrors, PermanentWriteError.
        """
        nodes = tuple(replace(node, database=ANY_DATABASE) for node in self._clickhouse.nodes)
        anywhere = replace(self._clickhouse, nodes=nodes)  # the database may not exist yet
        with self._write_errors("cannot apply the schema"), contextlib.closing(anywhere):
            try:
                apply_schema(anywhere, self._options, self._clickhouse.database, values)
            except (SchemaError, ChangedMigrationError) as exc:
                raise UnsupportedServerError(str(exc)) from exc

    def check(self) -> None:
        """Verifies the store by writing a row and reading it back. Raises TransientWriteError, PermanentWriteError."""
        token = uuid.uuid4().hex
        self.insert("write_checks", pa.table({"token": [token]}), token=token)
        try:
            (row,) = self.rows(_CHECK, {"token": token})
        except QueryError as exc:
            raise TransientWriteError(f"cannot read back what was written: {exc}") from exc
        if row["found"] != 1:
            raise TransientWriteError(f"the store confirmed one row and returns {row['found']}")

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        """Writes rows as ClickHouse.insert does. Raises TransientWriteError and PermanentWriteError."""
        name = f"{self._clickhouse.database}.{table}"
        with self._write_errors(f"cannot write {rows.num_rows} rows to {name}"):
            self._clickhouse.insert(table, rows, token=token)

    def holds(self, table: str, rows: pa.Table) -> bool:
        """Whether the table has all of these rows, by a sample of them; False if its rows have no identity.

        Raises TransientWriteError.
        """
        sample = stored_rows.sample_query(table, rows)
        if sample is None:
            return False
        try:
            (row,) = self.rows(sample.sql)
        except QueryError as exc:
            raise TransientWriteError(f"cannot look up rows of {table}: {exc}") from exc
        return bool(row["found"] == sample.rows)

    def command(self, sql: str, parameters: Mapping[str, Any]) -> None:
        """Runs a statement without rows. Raises TransientWriteError, PermanentWriteError."""
        with self._write_errors("cannot run a statement"):
            self._clickhouse.command(sql, parameters)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Row]:
        """All rows of a small result. Raises QueryError."""
        with self._query_errors():
            return self._clickhouse.rows(sql, parameters or {})

    def query_arrow(self, sql: str, parameters: Mapping[str, Any]) -> pa.Table:
        """A result of many rows, as columns. Raises QueryError."""
        with self._query_errors():
            return self._clickhouse.table(sql, parameters)

    def replicas_agree(self, table: str) -> bool:
        """Whether every replica is reachable and has all rows of a table that were confirmed before this call."""
        if not self._options.cluster:
            return True
        asked = replicas_behind(self._options.cluster, table)
        try:
            (row,) = self.rows(asked, {"database": self._clickhouse.database})
        except QueryError:
            return False
        return not row["behind"]

    def close(self) -> None:
        """Closes the connections."""
        self._clickhouse.close()

    @contextlib.contextmanager
    def _query_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError as exc:
            self._clickhouse.go_on()
            raise QueryError(str(exc)) from exc

    @contextlib.contextmanager
    def _write_errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except StoreTooOldError as exc:
            self._clickhouse.go_on()
            raise UnsupportedServerError(str(exc)) from exc
        except StoreError as exc:
            self._clickhouse.go_on()
            kind = PermanentWriteError if is_permanent(exc.code, str(exc)) else TransientWriteError
            raise kind(f"{failure}: {exc}", exc.code) from exc
