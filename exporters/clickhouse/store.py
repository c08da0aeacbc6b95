"""Inserts into a ClickHouse server, and queries with small results."""

from __future__ import annotations

import contextlib
import uuid
from binascii import hexlify
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters.clickhouse import stored_rows
from exporters.clickhouse.cluster import replicas_behind
from exporters.clickhouse.connection import ANY_DATABASE, Endpoint, in_database
from exporters.clickhouse.errors import code_and_message, is_permanent
from exporters.clickhouse.migrate import SchemaError, apply_schema
from exporters.clickhouse.options import Compression, StoreOptions
from exporters.clickhouse.schema import ChangedMigrationError

OLDEST_SERVER = (25, 8)

# All explicit: some are defaults of newer servers only. async_insert has no benefit for large batches and would
# confirm before the write. Dependent views are those that operators may attach to the tables.
_INSERT_SETTINGS = {
    "async_insert": "0",
    "insert_deduplicate": "1",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    # Else each insert merges its block, which costs more than the rest of it: maps of `series` twenty times as much.
    # FINAL and background merges do that work, as they do for equal rows of two inserts.
    "optimize_on_insert": "0",
    "wait_end_of_query": "1",  # confirm after the part is written, and report all errors
}

# ValueError: clickhouse-connect raises it in the handshake with a server that is not ClickHouse.
_FAILURES = (ClickHouseError, OSError, ValueError)

_SINGLE = StoreOptions()

_CHECK = "SELECT count() FROM headroom.write_checks WHERE token = {token:String}"


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
        self._endpoints = endpoints
        self._database = endpoints[0].database
        self._options = options
        self._failures = 0
        self._client: Client | None = None

    def migrate(self) -> None:
        """Applies missing migrations.

        Raises UnsupportedServerError, other TransientWriteErrors, PermanentWriteError.
        """
        with self._write_errors("cannot apply the schema"):
            try:
                apply_schema(self._connected(), self._options, self._database)
            except (SchemaError, ChangedMigrationError) as exc:
                raise UnsupportedServerError(str(exc)) from exc

    def check(self) -> None:
        """Verifies the store by writing a row and reading it back. Raises TransientWriteError, PermanentWriteError."""
        token = uuid.uuid4().hex
        self.insert("write_checks", pa.table({"token": [token]}), token=token)
        try:
            [(found,)] = self.query(_CHECK, {"token": token})
        except QueryError as exc:
            raise TransientWriteError(f"cannot read back what was written: {exc}") from exc
        if found != 1:
            raise TransientWriteError(f"the store confirmed one row and returns {found}")

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        """Writes rows into a table of the database; durable when it returns.

        The columns of `rows` have the names of the table's columns; missing ones take their defaults. Types:
        UUID is `fixed_size_binary(16)`, big endian; DateTime64(3) is `timestamp('ms', 'UTC')`; DateTime is
        `timestamp('s', 'UTC')`; Enum8 and LowCardinality(String) are strings, preferably dictionary-encoded (which any
        column may be); Map is `map_(string, string)`; Nullable takes null. Other types are not converted.

        `token` identifies this batch of this table permanently: rows sent again with the same token are deduplicated.
        Several tables may use the same token. A batch must not exceed a million rows, so that it is one block.

        Raises TransientWriteError and PermanentWriteError.
        """
        settings = {**_INSERT_SETTINGS, "insert_deduplication_token": token}
        name, block = f"{self._database}.{table}", _arrow_stream(rows, self._options.compression)
        failure = f"cannot write {rows.num_rows} rows to {name}"
        with self._write_errors(failure):
            done = self._connected().raw_insert(name, rows.column_names, block, settings, "ArrowStream")
        # The confirmed count includes deduplicated rows and rows that attached views wrote.
        confirmed = int(done.summary.get("written_rows", 0))
        if confirmed < rows.num_rows:
            raise TransientWriteError(f"{failure}: the server confirmed {confirmed} of them")

    def holds(self, table: str, rows: pa.Table) -> bool:
        """Whether the table has all of these rows, by a sample of them; False if its rows have no identity.

        Raises TransientWriteError.
        """
        question = stored_rows.question(table, rows)
        if question is None:
            return False
        try:
            [(found,)] = self.query(question.sql)
        except QueryError as exc:
            raise TransientWriteError(f"cannot look up rows of {table}: {exc}") from exc
        return bool(found == question.rows)

    def command(self, sql: str, parameters: Mapping[str, Any]) -> None:
        """Runs a statement without rows. Raises TransientWriteError, PermanentWriteError."""
        with self._write_errors("cannot run a statement"):
            self._connected().command(in_database(sql, self._database), parameters=dict(parameters))

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """All rows of a small result as Python values. Table names must be `headroom.NAME`. Raises QueryError."""
        try:
            asked = in_database(sql, self._database)
            return self._connected().query(asked, parameters=dict(parameters or {})).result_rows
        except (*_FAILURES, UnsupportedServerError) as exc:
            self._disconnect()
            raise QueryError(code_and_message(str(exc))[1]) from exc

    def query_arrow(self, sql: str, parameters: Mapping[str, Any]) -> pa.Table:
        """A result of many rows, as columns. Raises QueryError."""
        try:
            return self._connected().query_arrow(in_database(sql, self._database), parameters=dict(parameters))
        except (*_FAILURES, UnsupportedServerError) as exc:
            self._disconnect()
            raise QueryError(code_and_message(str(exc))[1]) from exc

    def replicas_agree(self, table: str) -> bool:
        """Whether every replica is reachable and has all rows of a table that were confirmed before this call."""
        if not self._options.cluster:
            return True
        try:
            [(behind,)] = self.query(replicas_behind(self._options.cluster, table), {"database": self._database})
        except QueryError:
            return False
        return not behind

    def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Client:
        if self._client is None:
            endpoint = self._endpoints[self._failures % len(self._endpoints)]
            # the database may not exist yet
            client = endpoint.connect(database=ANY_DATABASE, settings=self._options.client_settings())
            self._client = client
            _refuse_old(str(client.server_version))
        return self._client

    def _disconnect(self) -> None:
        """After a failure: the next connection is to the next node."""
        self._failures += 1
        self.close()

    @contextlib.contextmanager
    def _write_errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except UnsupportedServerError:
            self._disconnect()
            raise
        except _FAILURES as exc:
            self._disconnect()
            code, message = code_and_message(str(exc))
            kind = PermanentWriteError if is_permanent(code, message) else TransientWriteError
            raise kind(f"{failure}: {message}", code) from exc


def _refuse_old(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        raise UnsupportedServerError(f"ClickHouse {version} is too old: Headroom needs {oldest} or newer")


def _arrow_stream(rows: pa.Table, compression: Compression) -> bytes:
    for n, field in enumerate(rows.schema):
        if _value_type(field.type) == pa.binary(16):
            rows = rows.set_column(n, field.name, _uuid_texts(rows.column(n)))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _uuid_texts(column: Any) -> Any:
    """32 hexadecimal digits per UUID, because ClickHouse 25.8 cannot read a UUID from 16 bytes."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    values = encoded.dictionary
    digits = hexlify(memoryview(values.buffers()[1])[16 * values.offset : 16 * (values.offset + len(values))])
    texts = pa.Array.from_buffers(pa.binary(32), len(values), [None, pa.py_buffer(digits)])
    return pa.DictionaryArray.from_arrays(encoded.indices, texts.cast(pa.binary()).cast(pa.string()))
