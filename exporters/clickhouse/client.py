"""The one client of ClickHouse: every statement of Headroom passes it, over clickhouse-connect.

It decides which database a statement concerns (that of the endpoint: statements name their tables without one), which
node of a cluster is asked, how long, how often, as which user, and what an error says.
"""

from __future__ import annotations

import io
import logging
import re
import threading
from binascii import hexlify
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import orjson

from exporters.clickhouse.connection import (
    ANY_DATABASE,
    SECRET,
    SECRET_MACRO,
    WRITER,
    Compression,
    Endpoint,
    named_with_proxy,
)
from exporters.clickhouse.errors import (
    StoreAwayError,
    StoreError,
    StoreLoginError,
    StoreTooLargeError,
    StoreTooOldError,
    is_without_schema,
    store_error,
)
from exporters.clickhouse.profile import GREETING, allowed, refuse_fixed, set_assumed, settable

if TYPE_CHECKING:  # imported late: only a statement needs it, and it is slow
    import pyarrow as pa
    from clickhouse_connect.driver.client import Client

Row: TypeAlias = dict[str, Any]
Answer = TypeVar("Answer")

MAX_ANSWER_BYTES = 64 << 20
_ASK_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 10
_GREETING_LOCK = threading.Lock()
_COMPLETE = {"wait_end_of_query": "1"}  # an error has its status, and no part of a result is taken for the result
# An error is none of the rows; texts of other collectors may not be UTF-8.
_OF_JSON = {"http_write_exception_in_output_format": "0", "output_format_json_validate_utf8": "1"}
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # bytes in a statement of the command line, which are in literals of it
_EMPTY: Mapping[str, Any] = MappingProxyType({})

_OLDEST_SERVER = (25, 8)  # year and month
# From 25.12 on a server looks at the token of an INSERT SELECT only with this setting, earlier ones always.
DEDUPLICATE_SELECT: Mapping[str, str] = MappingProxyType({"deduplicate_insert_select": "enable_even_for_bad_queries"})

# All explicit: some are defaults of newer servers only. Dependent views are those that operators may attach.
_INSERT = {
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    # Else each insert merges its block, which costs more than the rest of it: maps of `series` twenty times as much.
    # FINAL and background merges do that work, as they do for equal rows of two inserts.
    "optimize_on_insert": "0",
}


@dataclass
class ClickHouse:
    """One server, or the nodes of one cluster, as one user and in one database. Threads may share it, processes may be
    sent it. It connects at the first statement; after a failure the next node is asked.

    All methods raise StoreError, also as StoreAwayError and StoreLoginError.
    """

    nodes: tuple[Endpoint, ...]
    timeout_s: float = 30.0  # of a statement, as long as nothing of its answer arrives
    settings: Mapping[str, str] = field(default_factory=dict)  # of every statement
    patience_s: float = 0.0  # for which a server that answered before is asked again when it is away
    compression: Compression = "none"  # of inserted blocks
    consistent: bool = False  # sees all rows that any replica confirmed, where the replicas of a database share them

    def __post_init__(self) -> None:
        self._current = 0
        self._has_answered = False
        self._clients: dict[int, Client] = {}
        self._too_large_bytes: int | None = None  # the smallest block that was refused for its size
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("nodes", "timeout_s", "settings", "patience_s", "compression", "consistent", "_has_answered")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        answered = self._has_answered
        self.__post_init__()
        self._has_answered = answered

    @property
    def current(self) -> Endpoint:
        """The node that is asked first."""
        return self.nodes[self._current]

    @property
    def database(self) -> str:
        """That of all nodes."""
        return self.nodes[0].database

    def rows(self, sql: str, parameters: Mapping[str, Any] = _EMPTY, *, max_bytes: int = MAX_ANSWER_BYTES) -> list[Row]:
        """A result of some thousand rows, values as in JSON: NaN and infinities are None.

        `parameters` fill the `{name:Type}` placeholders of the SQL on the server.
        """

        def read(client: Client) -> bytes:
            plain = settable(client.server_settings, _OF_JSON)
            stream = client.raw_stream(sql, _bound(parameters), {**_COMPLETE, **plain}, "JSONEachRow")
            with closing(cast(io.IOBase, stream)) as answer:
                return cast(bytes, answer.read(max_bytes + 1))

        body = self._ask(read)
        if len(body) > max_bytes:
            raise StoreError(f"a response of ClickHouse exceeds {max_bytes >> 20} MiB")
        return [orjson.loads(line) for line in body.splitlines()]

    def table(self, sql: str, parameters: Mapping[str, Any] = _EMPTY) -> pa.Table:
        """A result of many rows, as columns."""
        return self._ask(lambda client: client.query_arrow(sql, _bound(parameters)))

    def batches(self, sql: str, parameters: Mapping[str, Any] = _EMPTY) -> Iterator[pa.Table | pa.RecordBatch]:
        """A result of any size as it arrives. StoreErrors may come after some batches."""
        opened = self._ask(lambda client: client.query_arrow_stream(sql, _bound(parameters)))
        with self._errors(self.current), opened as stream:
            yield from stream

    @contextmanager
    def text(self, sql: str, format: str) -> Iterator[io.IOBase]:
        """The result of a user's statement; a FORMAT clause in the statement has precedence over `format`."""
        transport = {"X-ClickHouse-Format": format}
        statement = _NO_UTF8.sub(lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", sql)
        stream = self._ask(
            lambda client: client.raw_stream(statement, settings=_COMPLETE, transport_settings=transport)
        )
        with self._errors(self.current), closing(cast(io.IOBase, stream)) as result:
            yield result

    def command(
        self,
        sql: str,
        parameters: Mapping[str, Any] = _EMPTY,
        *,
        settings: Mapping[str, str] = _EMPTY,
        token: str = "",
    ) -> None:
        """A statement without a result. With a token the rows of an INSERT SELECT count once."""

        def run(client: Client) -> None:
            more = {"insert_deduplication_token": token, **DEDUPLICATE_SELECT} if token else {}
            refuse_fixed(client.server_settings, more, self.nodes[0].user)
            sent = {
                **allowed(client, settings, self.nodes[0].user),
                **settable(client.server_settings, more),
                **_COMPLETE,
            }
            client.command(sql, _bound(parameters), settings=sent)

        self._ask(run)

    def insert(self, table: str, rows: pa.Table, *, token: str, divide: bool = True) -> None:
        """Writes rows into a table of the database; they are durable when it returns.

        The columns of `rows` have the names of the table's columns; missing ones take their defaults. Types:
        UUID is `fixed_size_binary(16)`, big endian; DateTime64(3) is `timestamp('ms', 'UTC')`; DateTime is
        `timestamp('s', 'UTC')`; Enum8 and LowCardinality(String) are strings, preferably dictionary-encoded (which any
        column may be); Map is `map_(string, string)`; Nullable takes null. Other types are not converted.

        `token` identifies this batch of this table permanently: rows sent again with the same token are deduplicated.
        Several tables may use the same token. A batch must not exceed a million rows, so that it is one block.

        `divide`: rows that a proxy refuses for their size are written in halves, with tokens of their own. Rows that
        are sent again must then be refused again: who cannot be sure of that divides them itself. Without it such rows
        raise StoreTooLargeError, also unsent where as many bytes were refused before.
        """
        try:
            self._insert_block(table, rows, token)
        except StoreTooLargeError:
            if not divide or rows.num_rows < 2:
                raise
            middle = rows.num_rows // 2
            for half, part in enumerate((rows.slice(0, middle), rows.slice(middle))):
                self.insert(table, part, token=f"{token}/{half}")

    def _insert_block(self, table: str, rows: pa.Table, token: str) -> None:
        block = _arrow_stream(rows, self.compression)
        if self._too_large_bytes is not None and len(block) >= self._too_large_bytes:
            raise StoreTooLargeError(str(self.current))
        names = ", ".join(f"`{name}`" for name in rows.column_names)

        def write(client: Client) -> int:
            # Confirmed after the part is written; without the token a batch that is sent again would count twice.
            settings = {**_COMPLETE, "insert_deduplication_token": token, **settable(client.server_settings, _INSERT)}
            refuse_fixed(client.server_settings, {"insert_deduplication_token": token}, self.nodes[0].user)
            body = f"INSERT INTO `{table}` ({names}) FORMAT ArrowStream\n".encode() + block
            done = client.raw_insert("", insert_block=body, settings=settings)  # the block says the table
            return int(done.summary.get("written_rows", 0))

        # The confirmed count includes deduplicated rows and rows that attached views wrote.
        try:
            confirmed = self._ask(write)
        except StoreTooLargeError:
            self._too_large_bytes = len(block)
            raise
        if confirmed < rows.num_rows:
            raise StoreError(f"the server confirmed {confirmed} of {rows.num_rows} rows")

    def stored(self, table: str) -> str:
        """The table that holds the rows: on a cluster, the local table behind the Distributed one."""
        tables = self.rows(
            "SELECT engine FROM system.tables WHERE database = {database:String} AND name = {table:String}",
            {"table": table, "database": self.database},
        )
        return f"{table}_local" if tables and tables[0]["engine"] == "Distributed" else table

    def use_next_node(self) -> None:
        """The next statement goes to the next node, by a new connection."""
        self._forget(self._current)

    def close(self) -> None:
        """Closes the connections; another statement opens new ones."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _ask(self, request: Callable[[Client], Answer]) -> Answer:
        if not (self.patience_s and self._has_answered):
            return self._ask_nodes(request)
        import stamina
        import stamina.instrumentation

        stamina.instrumentation.set_on_retry_hooks([])  # the error that is left is reported, not each one on the way
        for attempt in stamina.retry_context(on=StoreAwayError, attempts=None, timeout=self.patience_s, wait_max=2.0):
            with attempt:
                return self._ask_nodes(request)
        raise AssertionError("stamina raises the last error")

    def _ask_nodes(self, request: Callable[[Client], Answer]) -> Answer:
        """The answer of the first node that is there, the current one first."""
        for tried in range(1, len(self.nodes) + 1):
            asked = self._current
            try:
                with self._errors(self.nodes[asked]):
                    answer = request(self._client(asked))
            except StoreAwayError:
                self._forget(asked)
                if tried == len(self.nodes):
                    raise
            else:
                self._has_answered = True
                return answer
        raise StoreAwayError("no node is configured")

    def _client(self, node: int) -> Client:
        client = self._clients.get(node)
        if client is not None:
            return client
        opened = _connected(self.nodes[node], self.timeout_s)  # without the lock: it may take its time
        try:
            refuse_old(str(opened.server_version))
            set_assumed(opened, self.nodes[node], self.settings, consistent=self.consistent)
        except BaseException:
            opened.close()
            raise
        with self._lock:
            return self._clients.setdefault(node, opened)

    def _forget(self, node: int) -> None:
        with self._lock:
            client = self._clients.pop(node, None)
            if self._current == node:
                self._current = (node + 1) % len(self.nodes)
        if client is not None:
            client.close()

    @contextmanager
    def _errors(self, node: Endpoint) -> Iterator[None]:
        from clickhouse_connect.driver.exceptions import ClickHouseError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (StoreError, BrokenPipeError):  # the latter is standard output's
            raise
        # A server other than ClickHouse fails the handshake in many ways: bad numbers and Arrow streams raise
        # ValueError. A stream that is cut off raises urllib3's exceptions.
        except (ClickHouseError, HTTPError, ValueError, OSError) as exc:
            raise store_error(exc, named_with_proxy(node), node.user) from exc


def _connected(endpoint: Endpoint, timeout_s: float) -> Client:
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from clickhouse_connect.driver.httpclient import HttpClient

    from exporters.clickhouse.connection_pool import connection_pool

    for library in ("clickhouse_connect", "urllib3"):  # they raise what they log; the import sets urllib3's level
        logging.getLogger(library).setLevel(logging.CRITICAL)

    def connect() -> Client:
        return clickhouse_connect.get_client(
            pool_mgr=connection_pool(endpoint),
            interface=endpoint.scheme,
            host=endpoint.host,
            port=endpoint.port,
            username=endpoint.user or "default",
            password=endpoint.password,
            database=endpoint.database,
            proxy_path=endpoint.path,
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=timeout_s,
            autogenerate_session_id=False,  # a session takes one query at a time
            show_clickhouse_errors="scrub",  # without the URL
            **cast(dict[str, Any], endpoint.tls.options() if endpoint.scheme == "https" else {}),
        )

    try:
        client = connect()
    except ClickHouseError as exc:
        failed = store_error(exc, str(endpoint), endpoint.user)
        if isinstance(failed, StoreLoginError) or is_without_schema(failed) or exc.__context__ is not None:
            raise
    else:
        if not client.server_settings or "session_timezone" in client.server_settings:
            return client
        client.close()
    # The library reads the profile before it sets anything, and this profile does not let it.
    with _GREETING_LOCK:
        http_client: Any = HttpClient
        before = http_client.params
        http_client.params = dict(GREETING)  # of all connections that are opened meanwhile
        try:
            return connect()
        finally:
            http_client.params = before


def with_writer(endpoint: Endpoint) -> Endpoint:
    """The same server with a user that has write access.

    An endpoint with a user or a password is returned unchanged. Otherwise a managed server on this machine reports the
    path of its writer's password file, which only the file's owner can read. Raises StoreError when it cannot be read.
    """
    if endpoint.user or endpoint.password or not endpoint.is_loopback or endpoint.scheme == "https":
        return endpoint  # a managed server speaks http
    asked = ClickHouse((replace(endpoint, database=ANY_DATABASE),), _ASK_TIMEOUT_S)
    try:
        (macro,) = asked.rows("SELECT getMacro({name:String}) AS file", {"name": SECRET_MACRO})
    except StoreError:
        return endpoint
    finally:
        asked.close()
    file = Path(macro["file"])
    if file.name != "writer.password" or not file.is_file():
        return endpoint
    try:
        secret = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError as exc:
        raise StoreError(f"cannot read the password of {endpoint}'s writer: {exc.strerror}") from exc
    # The server chooses the path, so the content is sent only if it looks like a generated password.
    return replace(endpoint, user=WRITER, password=secret) if SECRET.fullmatch(secret) else endpoint


def refuse_old(version: str) -> None:
    """Raises StoreTooOldError."""
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if release < _OLDEST_SERVER:
        oldest = ".".join(map(str, _OLDEST_SERVER))
        raise StoreTooOldError(f"ClickHouse {version} is too old: Headroom needs {oldest} or newer")


def _bound(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """As the library takes them: it writes an array for a list and a tuple for a tuple."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in parameters.items()}


def _arrow_stream(rows: pa.Table, compression: Compression) -> pa.Buffer:
    """An ArrowStream with UUIDs (`fixed_size_binary(16)`) as text."""
    import pyarrow as pa

    for n, column in enumerate(rows.schema):
        value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if value_type == pa.binary(16):
            rows = rows.set_column(n, column.name, _uuid_texts(rows.column(n)))

    def write(sink: Any) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows)

    if compression != "none":
        sink = pa.BufferOutputStream()
        write(sink)
        return sink.getvalue()
    counted = pa.MockOutputStream()  # a buffer that grows is copied again and again
    write(counted)
    block = pa.allocate_buffer(counted.size())
    write(pa.FixedSizeBufferWriter(block))
    return block


def _uuid_texts(column: Any) -> Any:
    """32 hexadecimal digits per UUID, because ClickHouse 25.8 cannot read a UUID from 16 bytes."""
    import pyarrow as pa

    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    values = encoded.dictionary
    digits = hexlify(memoryview(values.buffers()[1])[16 * values.offset : 16 * (values.offset + len(values))])
    texts = pa.Array.from_buffers(pa.binary(32), len(values), [None, pa.py_buffer(digits)])
    return pa.DictionaryArray.from_arrays(encoded.indices, texts.cast(pa.binary()).cast(pa.string()))
