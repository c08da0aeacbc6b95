"""Query results as dictionaries, and single statements, over plain HTTP: for commands and pages that read a few hundred
rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import orjson

from exporters.clickhouse.connection import Endpoint, in_database

Row: TypeAlias = dict[str, Any]
Answer = TypeVar("Answer")

_MAX_ERROR_BYTES = 4_096
MAX_ANSWER_BYTES = 64 << 20


class UnreachableError(ConnectionError):
    """The server does not answer; another node of its cluster may."""


class Nodes:
    """One server, or nodes of one cluster. Questions go to the node that answered last; threads may share it."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self._endpoints = endpoints
        self._current = 0

    @property
    def current(self) -> Endpoint:
        return self._endpoints[self._current]

    def ask(self, question: Callable[[Endpoint], Answer]) -> Answer:
        """The answer of the first reachable node, starting with the current one. Raises what `question` raises."""
        for tried in range(1, len(self._endpoints) + 1):
            asked = self._current
            try:
                return question(self._endpoints[asked])
            except UnreachableError:
                self._current = (asked + 1) % len(self._endpoints)
                if tried == len(self._endpoints):
                    raise
        raise UnreachableError("no node is configured")


def read_rows(
    endpoint: Endpoint,
    sql: str,
    parameters: Mapping[str, object] | None = None,
    *,
    timeout_s: float = 10.0,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> list[Row]:
    """`parameters` fill the `{name:Type}` placeholders of the SQL on the server. NaN and infinities become None.

    Raises UnreachableError, and ConnectionError when the server refuses the query or sends more than `max_bytes`.
    """
    answer = _answer(endpoint, sql, parameters or {}, {"default_format": "JSONEachRow"}, timeout_s, max_bytes)
    return [orjson.loads(line) for line in answer.splitlines()]


def run_statement(
    endpoint: Endpoint, sql: str, parameters: Mapping[str, object], settings: Mapping[str, str], *, timeout_s: float
) -> None:
    """A statement without a result, as INSERT ... SELECT. The server gives up after `timeout_s`, too.

    Raises UnreachableError, and ConnectionError when the server refuses it.
    """
    limit = {"max_execution_time": f"{timeout_s:.0f}"}
    _answer(endpoint, sql, parameters, {**limit, **settings}, timeout_s, _MAX_ERROR_BYTES)


def _answer(
    endpoint: Endpoint,
    sql: str,
    parameters: Mapping[str, object],
    settings: Mapping[str, str],
    timeout_s: float,
    max_bytes: int,
) -> bytes:
    given = {f"param_{name}": _parameter(value) for name, value in parameters.items()}
    query = urlencode({"database": endpoint.database, "wait_end_of_query": "1", **settings, **given})
    try:
        connection = endpoint.open_http(timeout_s)
    except OSError as exc:
        raise ConnectionError(f"cannot read the TLS files of {endpoint}: {exc}") from exc
    try:
        connection.request("POST", f"/?{query}", in_database(sql, endpoint.database).encode(), endpoint.headers)
        response = connection.getresponse()
        size = max_bytes + 1 if response.status == 200 else _MAX_ERROR_BYTES
        body = response.read(size)
    except (OSError, HTTPException) as exc:
        reason = getattr(exc, "strerror", None) or exc or type(exc).__name__
        raise UnreachableError(f"cannot reach {endpoint}: {reason}") from exc
    finally:
        connection.close()
    if response.status != 200:
        error = body.decode("utf-8", "replace")
        raise ConnectionError(f"ClickHouse refused a query: {' '.join(error.split())[:300]}")
    if len(body) > max_bytes:
        raise ConnectionError(f"a response of ClickHouse exceeds {max_bytes >> 20} MiB")
    return body


def _parameter(value: object) -> str:
    """Escapes a value as TSV, the format in which ClickHouse reads parameters."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(_quoted(str(item)) for item in value) + "]"
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _quoted(item: str) -> str:
    escaped = item.replace("\\", "\\\\").replace("'", "\\'")
    # escaped twice: as an array literal, then as TSV
    return "'" + escaped.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r") + "'"
