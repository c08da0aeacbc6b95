"""Runs one SqlRequest on a handle of the embedded engine, so that no result is whole in memory.

Two ways to give rows: formats whose blocks can simply follow each other are streamed as the engine makes them. All
others have a beginning and an end, and the engine writes them to a file, which is then read; so is a result that the
client wants whole, because then an error still finds its HTTP status.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from exporters.clickhouse.embedded import Engine, EngineError, Handle, quote
from exporters.clickhouse.errors import Code
from exporters.clickhouse.sql_request import SqlRequest, content_type, exception_block
from exporters.clickhouse.sql_statement import Kind

log = structlog.get_logger(__name__)

CHUNK_BYTES = 1 << 18
MARK = "log_comment"  # a setting that means nothing to the engine and is shown in system.processes

_STREAMED = re.compile("Native|ArrowStream|TabSeparated(Raw)?|TSV(Raw)?|CSV|RowBinary|JSON(Compact)?EachRow|JSONLines")
_ARROW_CONTINUATION = b"\xff\xff\xff\xff"
_ARROW_END = _ARROW_CONTINUATION + bytes(4)


class CutShortError(Exception):
    """The result failed after its beginning was sent; the connection must end without a regular end of body."""


@dataclass(slots=True)
class Answer:
    """Headers are final. `chunks` may end with CutShortError. Call `close` in any case."""

    headers: dict[str, str]
    chunks: Iterator[bytes] = field(default_factory=lambda: iter(()))
    close: Callable[[], None] = lambda: None


def answer(engine: Engine, request: SqlRequest, read: Callable[[int], bytes], directory: Path) -> Answer:
    """Runs the request. `read` gives what follows `request.data`; `directory` is for results on their way.

    Returns when the first piece of the result is there. Raises EngineError, and what `read` raises.
    """
    kind = request.statement.kind
    handle = engine.handle(request.settings, request.database)
    try:
        if kind is Kind.INSERT:
            return _inserted(handle, request, read)
        if kind is not Kind.SELECT:
            return _told(handle, request)
        if _can_stream(request):
            return _streamed(handle, request)
        return _stored(handle, request, directory)
    except BaseException:
        handle.close()
        raise


def cancel_selects(engine: Engine, mark: str = "") -> None:
    """Cancels running SELECTs: those whose setting MARK is `mark`, or all. Raises nothing: they end by themselves."""
    which = f"AND Settings[{quote(MARK)}] = {quote(mark)}" if mark else ""
    try:
        with engine.handle() as handle:
            handle.query(f"KILL QUERY WHERE query_kind = 'Select' {which} ASYNC")
    except EngineError as exc:
        log.warning("cannot cancel queries", error=exc.message)


def _can_stream(request: SqlRequest) -> bool:
    # Totals would come as a block like any other, without the empty line that sets them apart.
    streamable = _STREAMED.fullmatch(request.output_format) is not None
    return streamable and not request.whole and not request.statement.with_totals


def _inserted(handle: Handle, request: SqlRequest, read: Callable[[int], bytes]) -> Answer:
    chunks = itertools.chain([request.data], iter(lambda: read(CHUNK_BYTES), b""))
    result = handle.insert(request.statement.sql, request.statement.format, chunks)
    handle.close()
    return Answer(_summary(written_rows=result.rows_written, written_bytes=result.bytes_written))


def _told(handle: Handle, request: SqlRequest) -> Answer:
    result = handle.query(_sql(request), request.output_format)
    headers = _read_summary(result)
    if request.statement.kind is not Kind.COMMAND:
        headers |= _format_headers(request)
    text = bytes(result.bytes())
    handle.close()
    return Answer(headers, iter([text]))


def _stored(handle: Handle, request: SqlRequest, directory: Path) -> Answer:
    path = directory / f"result-{secrets.token_hex(8)}"
    statement = request.statement
    into = f"INTO OUTFILE {quote(str(path))} FORMAT {request.output_format} {statement.tail}"
    try:
        result = handle.query(f"{statement.sql}\n{into}")
        file = path.open("rb")
    except EngineError as exc:
        if exc.code != Code.SYNTAX_ERROR:
            raise
        return _told(handle, request)  # says where the error is in the client's own words
    finally:
        path.unlink(missing_ok=True)  # an open file stays readable
    handle.close()
    return Answer(
        _read_summary(result) | _format_headers(request), iter(lambda: file.read(CHUNK_BYTES), b""), file.close
    )


def _streamed(handle: Handle, request: SqlRequest) -> Answer:
    sql, output_format = _sql(request), request.output_format
    blocks = handle.stream(sql, output_format)

    def close() -> None:
        blocks.close()
        handle.close()

    first = next(blocks, None)
    if first is None:
        # The engine streams nothing for no rows, not even a schema.
        first = bytes(handle.query(sql, output_format).bytes())
    pieces: Iterator[bytes] = itertools.chain([first], blocks)
    if output_format == "ArrowStream":
        pieces = _one_arrow_stream(pieces)
    tag = secrets.token_hex(8)
    headers = _format_headers(request) | {"X-ClickHouse-Exception-Tag": tag}
    return Answer(headers, _until_failure(pieces, tag), close)


def _until_failure(pieces: Iterator[bytes], tag: str) -> Iterator[bytes]:
    try:
        yield from pieces
    except EngineError as exc:
        yield exception_block(tag, exc.message)
        raise CutShortError(exc.message) from exc


def _one_arrow_stream(streams: Iterator[bytes]) -> Iterator[bytes]:
    """Complete Arrow streams of one schema as one: the schema once, in front, and one end."""
    for number, stream in enumerate(streams):
        start = _schema_bytes(stream) if number else 0
        yield stream[start : -len(_ARROW_END)] if stream.endswith(_ARROW_END) else stream[start:]
    yield _ARROW_END


def _schema_bytes(stream: bytes) -> int:
    # Arrow IPC: a message is 0xFFFFFFFF, its length (int32), itself; a schema has no body.
    return 8 + int.from_bytes(stream[4:8], "little")


def _sql(request: SqlRequest) -> str:
    statement = request.statement
    return f"{statement.sql}\nFORMAT {request.output_format} {statement.tail}" if statement.format else statement.sql


def _format_headers(request: SqlRequest) -> dict[str, str]:
    return {"X-ClickHouse-Format": request.output_format, "Content-Type": content_type(request.output_format)}


def _read_summary(result: Any) -> dict[str, str]:
    return _summary(
        read_rows=result.storage_rows_read(),
        read_bytes=result.storage_bytes_read(),
        result_rows=result.rows_read(),
        result_bytes=result.bytes_read(),
        elapsed_ns=int(result.elapsed() * 1e9),
    )


def _summary(**counts: int) -> dict[str, str]:
    return {"X-ClickHouse-Summary": json.dumps({name: str(count) for name, count in counts.items()})}
