"""Whether a ClickHouse server is there: GET /ping, which it answers without running a query, however busy it is."""

from __future__ import annotations

import http.client
from collections.abc import Sequence

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError, store_error


def ping(nodes: Sequence[Endpoint], timeout_s: float) -> None:
    """Waits for at most `timeout_s` in all. Raises StoreError when no node answers: that of the last."""
    failure = StoreError("no node is configured")
    for node in nodes:
        try:
            _ask(node, timeout_s / len(nodes))
        except (OSError, http.client.HTTPException) as exc:
            failure = store_error(exc, str(node), node.user)
        else:
            return
    raise failure


def _ask(node: Endpoint, timeout_s: float) -> None:
    """Any status is an answer: a proxy may know no /ping."""
    if node.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            node.host, node.port, timeout=timeout_s, context=node.tls.context()
        )
    else:
        connection = http.client.HTTPConnection(node.host, node.port, timeout=timeout_s)
    try:
        connection.request("GET", "/ping")
        connection.getresponse()
    finally:
        connection.close()
