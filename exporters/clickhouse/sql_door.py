"""ClickHouse's HTTP interface over the embedded engine: one door for Spark, the command line, dashboards and curl.

GET and POST on `/`, and `/ping`. No users and no sessions: whoever reaches the address may read and write tables,
so it belongs on loopback. A request with the Origin of another host is refused: a web page must not reach the store
through its reader's browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO, cast
from urllib.parse import urlsplit

import structlog
import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from exporters.clickhouse.embedded import Engine, EngineError
from exporters.clickhouse.errors import Code, status_of
from exporters.clickhouse.schema import DATABASE
from exporters.clickhouse.sql_answer import MARK, Answer, CutShortError, answer, cancel_selects
from exporters.clickhouse.sql_body import Body, form_fields
from exporters.clickhouse.sql_request import MAX_HEAD_BYTES, SqlRequest, read_request
from exporters.clickhouse.sql_statement import StatementError
from exporters.clickhouse.store import Store

log = structlog.get_logger(__name__)

# A request may name others.
_DEFAULT_SETTINGS = {"max_execution_time": "60", "max_memory_usage": "2000000000"}

_MEMORY_BODY_BYTES = 1 << 20
_MAX_CONNECTIONS = 256
_STOP_S = 5


class SqlDoor:
    """The door of an embedded store. Runs in a thread of its own."""

    def __init__(
        self,
        store: Store,
        host: str,
        port: int,
        *,
        max_queries: int = 8,
        max_body_bytes: int = 1 << 30,
        idle_timeout_s: float = 60.0,
    ) -> None:
        """`max_queries` run at a time, others wait; a body is bounded before and after decompression; a client
        that neither sends nor takes anything for `idle_timeout_s` is dropped. Raises ValueError for a server's store.
        """
        if store.engine is None:
            raise ValueError("cannot open an SQL door: the store is a ClickHouse server, which has its own")
        self._address = (host, port)
        self._app = _App(store.engine, max_queries, max_body_bytes, idle_timeout_s)
        self._engine = store.engine
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> tuple[str, int]:
        """Listens; port 0 takes a free one. The address that it has now. Raises OSError when it cannot."""
        host, port = self._address
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="critical",  # it logs each cut connection as a fault of ours
            access_log=False,
            ws="none",
            lifespan="off",
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_STOP_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,  # parameters come in the URL
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="sql-door", daemon=True)
        self._thread.start()
        return host, listener.getsockname()[1]

    def stop(self) -> None:
        """Takes no more requests, cancels running SELECTs, lets inserts end."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        cancel_selects(self._engine)
        self._thread.join(2 * _STOP_S)


class _App:
    """The ASGI application."""

    def __init__(self, engine: Engine, max_queries: int, max_body_bytes: int, idle_timeout_s: float) -> None:
        self._engine = engine
        self._slots = asyncio.Semaphore(max_queries)
        self._max_body_bytes = max_body_bytes
        self._idle_timeout_s = idle_timeout_s
        # Bodies and results on their way. The directory is ours alone (the engine holds its lock), so what lies
        # there was left by a process that was killed.
        self._directory = engine.directory / "sql-door"
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await self._serve(request, send)
        except (ClientDisconnect, CutShortError):
            raise  # uvicorn closes the connection, which is how the client learns of it
        except (StatementError, EngineError) as exc:
            await _refusal(exc.code, exc.message)(scope, receive, send)
        except Exception:
            log.exception("cannot answer an SQL request")
            raise

    async def _serve(self, request: Request, send: Send) -> None:
        if refused := _refused_before_reading(request):
            return await refused(request.scope, request.receive, send)
        with tempfile.SpooledTemporaryFile(_MEMORY_BODY_BYTES, dir=str(self._directory)) as file:
            await self._receive_body(request, cast(BinaryIO, file))
            async with self._slot():
                sql, result = await self._run_while_connected(request, cast(BinaryIO, file))
                try:
                    await _Result(sql, result, self._idle_timeout_s)(request.scope, request.receive, send)
                finally:
                    result.close()

    async def _receive_body(self, request: Request, file: BinaryIO) -> None:
        chunks = request.stream()
        while chunk := await self._next_chunk(chunks):
            file.write(chunk)
            if file.tell() > self._max_body_bytes:
                raise StatementError(Code.QUERY_IS_TOO_LARGE, f"The body is longer than {self._max_body_bytes} bytes")
        file.seek(0)

    async def _next_chunk(self, chunks: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await anext(chunks, b"")
        except TimeoutError as exc:
            raise StatementError(Code.TIMEOUT_EXCEEDED, "The rest of the body did not come") from exc

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                await self._slots.acquire()
        except TimeoutError as exc:
            raise StatementError(Code.TOO_MANY_SIMULTANEOUS_QUERIES, "Too many queries run already") from exc
        try:
            yield
        finally:
            self._slots.release()

    async def _run_while_connected(self, request: Request, file: BinaryIO) -> tuple[SqlRequest, Answer]:
        mark = uuid.uuid4().hex
        running = asyncio.create_task(run_in_threadpool(self._run, request, file, mark))
        leaving = asyncio.ensure_future(request.receive())  # the body is read: what comes next is the end
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await run_in_threadpool(cancel_selects, self._engine, mark)
            return await running
        finally:
            leaving.cancel()

    def _run(self, request: Request, file: BinaryIO, mark: str) -> tuple[SqlRequest, Answer]:
        headers = request.headers
        body = Body(file, headers.get("content-encoding", ""), self._max_body_bytes)
        head = body.read(MAX_HEAD_BYTES)
        complete = len(head) < MAX_HEAD_BYTES
        fields = {
            "database": headers.get("x-clickhouse-database", ""),
            "default_format": headers.get("x-clickhouse-format", ""),
            **request.query_params,
        }
        content_type = headers.get("content-type", "")
        if content_type.startswith("multipart/form-data") and complete:
            fields |= form_fields(content_type, head)
            head = b""
        defaults = {**_DEFAULT_SETTINGS, MARK: mark}
        sql = read_request(request.method, fields, head, complete=complete, defaults=defaults, database=DATABASE)
        return sql, answer(self._engine, sql, body.read, self._directory)


class _Result(StreamingResponse):
    """A result on its way; a reader that takes nothing for `idle_timeout_s` is dropped."""

    def __init__(self, sql: SqlRequest, result: Answer, idle_timeout_s: float) -> None:
        super().__init__(result.chunks, headers={**_headers(sql.query_id), **result.headers})
        self._idle_timeout_s = idle_timeout_s

    async def stream_response(self, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(self._idle_timeout_s):
                await send(message)

        await super().stream_response(send_soon)


def _refused_before_reading(request: Request) -> Response | None:
    """The answer to what is no statement at all."""
    if request.url.path == "/ping" or (request.method == "GET" and not request.url.query):
        return PlainTextResponse("Ok.\n")
    if request.url.path != "/" or request.method not in ("GET", "POST"):
        return PlainTextResponse("There is no handle: POST a statement to /\n", 404)
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        return PlainTextResponse("Requests of other sites' pages are refused\n", 403)
    return None


def _refusal(code: int, message: str) -> Response:
    headers = {**_headers(""), "X-ClickHouse-Exception-Code": str(code)}
    return PlainTextResponse(message + "\n", status_of(code), headers)


def _headers(query_id: str) -> Mapping[str, str]:
    # The zone is the session's: exporters/clickhouse/embedded.py.
    return {
        "X-ClickHouse-Query-Id": query_id or str(uuid.uuid4()),
        "X-ClickHouse-Timezone": "UTC",
        "X-ClickHouse-Server-Display-Name": "headroom",
    }
