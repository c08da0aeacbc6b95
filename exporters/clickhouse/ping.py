"""Whether a ClickHouse server is there: GET /ping, which it answers without running a query, however busy it is."""

import http.client
from collections.abc import Sequence
from contextlib import closing

from urllib3.exceptions import HTTPError

from exporters.clickhouse.connection import Endpoint, named_with_proxy, proxy_of
from exporters.clickhouse.errors import StoreError, store_error

_OF_PROXIES = (403, 407, 502, 503, 504)  # forbidden, log in first, server not reached


def ping(nodes: Sequence[Endpoint], timeout_s: float) -> None:
    """Waits for at most `timeout_s` in all. Raises StoreError when no node answers: that of the last."""
    failure = StoreError("no node is configured")
    for node in nodes:
        timeout_of_node_s = timeout_s / len(nodes)
        try:
            if proxy_of(node):
                from exporters.clickhouse.connection_pool import connection_pool  # slow to import

                pool = connection_pool(node)
                answer = pool.request("GET", f"{node}/ping", timeout=timeout_of_node_s, retries=False)
                if answer.status in _OF_PROXIES:
                    raise ConnectionError(answer.status, f"the proxy answers {answer.status} {answer.reason}")
            else:
                with closing(connection_to(node, timeout_of_node_s)) as connection:
                    connection.request("GET", f"{node.path}/ping")
                    connection.getresponse()  # with any status: a proxy may know no /ping
        except (OSError, http.client.HTTPException, HTTPError) as exc:
            failure = store_error(exc, named_with_proxy(node), node.user)
        else:
            return
    raise failure


def connection_to(node: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    """A new connection of its own, which is opened by the first request."""
    if node.scheme == "https":
        return http.client.HTTPSConnection(node.host, node.port, timeout=timeout_s, context=node.tls.context())
    return http.client.HTTPConnection(node.host, node.port, timeout=timeout_s)
