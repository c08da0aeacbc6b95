"""An HTTP request as ClickHouse's HTTP interface reads it, and the words of its answers. Sans-I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from exporters.clickhouse.errors import Code
from exporters.clickhouse.sql_statement import Kind, Statement, StatementError, parse

# The statement, without the data of an INSERT, must fit: ClickHouse's own max_query_size.
MAX_HEAD_BYTES = 1 << 18

# Parameters of the interface; every other one is a setting. There are no sessions and no users here.
_INTERFACE = re.compile(
    "query|database|default_format|wait_end_of_query|buffer_size|query_id|stacktrace|session_id|session_timeout"
    "|session_check|close_session|user|password|quota_key|role|compress|decompress|enable_http_compression"
    "|client_protocol_version|send_progress_in_http_headers|http_headers_progress_interval_ms"
    "|cancel_http_readonly_queries_on_client_close"
)
_SETTING_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)

_CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "JSON": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "Native": "application/octet-stream",
    "Arrow": "application/octet-stream",
    "ArrowStream": "application/octet-stream",
    "Parquet": "application/octet-stream",
    "RowBinary": "application/octet-stream",
}


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """One statement with all that is needed to run it. `data` is the beginning of an INSERT's data."""

    statement: Statement
    data: bytes
    output_format: str
    database: str
    settings: Mapping[str, str]
    query_id: str
    whole: bool  # the answer begins when the result is complete: wait_end_of_query


def read_request(
    method: str, fields: Mapping[str, str], head: bytes, *, complete: bool, defaults: Mapping[str, str], database: str
) -> SqlRequest:
    """`head` is the beginning of the body, up to MAX_HEAD_BYTES, decompressed; `complete`: all of it.

    `defaults` are settings that hold unless the request names them, `database` where it names none.
    Raises StatementError.
    """
    for flag in ("compress", "decompress"):
        if fields.get(flag, "0") not in ("", "0"):
            raise StatementError(Code.NOT_IMPLEMENTED, f"{flag}=1 is not supported: use Content-Encoding")
    parts = [part for part in (fields.get("query", ""), head.decode("utf-8", "surrogateescape")) if part]
    text = "\n".join(parts)
    statement = parse(text)
    if not complete and statement.kind is not Kind.INSERT:
        raise StatementError(Code.QUERY_IS_TOO_LARGE, f"The statement is longer than {MAX_HEAD_BYTES} bytes")
    data_at = statement.data_at
    return SqlRequest(
        statement=statement,
        data=text[data_at:].encode("utf-8", "surrogateescape") if data_at >= 0 else b"",
        output_format=statement.format or fields.get("default_format") or "TabSeparated",
        database=fields.get("database") or database,
        settings=_settings(method, fields, defaults),
        query_id=fields.get("query_id", ""),
        whole=fields.get("wait_end_of_query", "0") not in ("", "0"),
    )


def content_type(output_format: str) -> str:
    """The Content-Type of a result."""
    return _CONTENT_TYPES.get(output_format, "text/plain; charset=UTF-8")


def exception_block(tag: str, message: str) -> bytes:
    """How ClickHouse (25.11 on) says in the middle of a result that it failed; `tag` went ahead in a header."""
    text = message.encode("utf-8", "replace") + b"\n"
    marked = tag.encode("ascii")
    return b"\r\n__exception__\r\n%s\r\n%s%d %s\r\n__exception__\r\n" % (marked, text, len(text), marked)


def _settings(method: str, fields: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    settings = dict(defaults)
    for name, value in fields.items():
        if _INTERFACE.fullmatch(name):
            continue
        if not _SETTING_NAME.fullmatch(name):
            raise StatementError(Code.UNKNOWN_SETTING, f"Unknown setting {name!r}")
        settings[name] = value
    if method != "POST":
        settings["readonly"] = "2"  # as ClickHouse: a GET changes nothing, though it may choose settings
    return settings
