"""Query results as dictionaries over plain HTTP, for commands and pages that read a few hundred rows."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.parse import urlencode

import orjson

from exporters.clickhouse.connection import DATABASE, Endpoint

Row: TypeAlias = dict[str, Any]

_MAX_ERROR_BYTES = 4_096
_MAX_ANSWER_BYTES = 64 << 20


def read_rows(
    endpoint: Endpoint, sql: str, parameters: Mapping[str, object] | None = None, *, timeout_s: float = 10.0
) -> list[Row]:
    """`parameters` fill the `{name:Type}` placeholders of the SQL on the server. NaN and infinities become None.

    Raises ConnectionError when the server is unreachable, refuses the query, or sends more than 64 MiB.
    """
    given = {f"param_{name}": _parameter(value) for name, value in (parameters or {}).items()}
    query = urlencode({"database": DATABASE, "default_format": "JSONEachRow", "wait_end_of_query": "1", **given})
    try:
        connection = endpoint.open_http(timeout_s)
    except OSError as exc:
        raise ConnectionError(f"cannot read the TLS files of {endpoint}: {exc}") from exc
    try:
        connection.request("POST", f"/?{query}", sql.encode(), endpoint.headers)
        response = connection.getresponse()
        if response.status != 200:
            error = response.read(_MAX_ERROR_BYTES).decode("utf-8", "replace")
            raise ConnectionError(f"ClickHouse refused a query: {' '.join(error.split())[:300]}")
        body = response.read(_MAX_ANSWER_BYTES + 1)
    except (OSError, HTTPException) as exc:
        if isinstance(exc, ConnectionError):
            raise
        raise ConnectionError(f"cannot read from {endpoint}: {exc or type(exc).__name__}") from exc
    finally:
        connection.close()
    if len(body) > _MAX_ANSWER_BYTES:
        raise ConnectionError("a response of ClickHouse exceeds 64 MiB")
    return [orjson.loads(line) for line in body.splitlines()]


def _parameter(value: object) -> str:
    """Escapes a value as TSV, the format in which ClickHouse reads parameters."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(_quoted(str(item)) for item in value) + "]"
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _quoted(item: str) -> str:
    escaped = item.replace("\\", "\\\\").replace("'", "\\'")
    # escaped twice: as an array literal, then as TSV
    return "'" + escaped.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r") + "'"
