"""The body of an HTTP request: kept aside up to a limit, and read decompressed up to the same limit."""

from __future__ import annotations

import email
import email.policy
import gzip
import zlib
from typing import BinaryIO, cast

import lz4.frame
import zstandard

from exporters.clickhouse.errors import Code
from exporters.clickhouse.sql_statement import StatementError

_FAILURES = (zstandard.ZstdError, zlib.error, RuntimeError, EOFError, OSError)  # RuntimeError: lz4


class Body:
    """Reads `file` through its Content-Encoding. clickhouse-connect compresses block by block, so a body may hold
    many frames; each reader here goes on to the next one."""

    def __init__(self, file: BinaryIO, encoding: str, max_bytes: int) -> None:
        """Raises StatementError when the encoding is not known."""
        self._source = _reader(file, encoding)
        self._encoding = encoding
        self._left = max_bytes

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, empty at the end. Raises StatementError: damaged, or more than the limit."""
        try:
            data = self._source.read(size)
        except _FAILURES as exc:
            raise StatementError(Code.CANNOT_DECOMPRESS, f"Cannot read the body as {self._encoding}: {exc}") from exc
        self._left -= len(data)
        if self._left < 0:
            raise StatementError(Code.QUERY_IS_TOO_LARGE, "The body is too large when decompressed")
        return data


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a multipart/form-data body, as clickhouse-connect sends long parameters.

    Raises StatementError: a file, which would be external data, or not UTF-8.
    """
    message = email.message_from_bytes(
        b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body, policy=email.policy.HTTP
    )
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if part.get_filename() or not isinstance(name, str):
            raise StatementError(Code.NOT_IMPLEMENTED, "External data is not supported")
        try:
            fields[name] = bytes(cast(bytes, part.get_payload(decode=True))).decode()
        except UnicodeDecodeError as exc:
            raise StatementError(Code.SYNTAX_ERROR, f"Field {name!r} is not UTF-8") from exc
    return fields


def _reader(file: BinaryIO, encoding: str) -> BinaryIO:
    match encoding:
        case "" | "identity":
            return file
        case "lz4":
            return cast(BinaryIO, lz4.frame.open(file))
        case "zstd":
            return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        case "gzip":
            return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    raise StatementError(Code.CANNOT_DECOMPRESS, f"Content-Encoding {encoding!r} is not supported: lz4, zstd or gzip")
