"""HTTP connections to a ClickHouse server, by the environment's proxy if it has one. A redirect is an error.

Imported late: urllib3 and the client library are slow to import, and only a statement needs them.
"""

import errno
import os
from functools import cache
from typing import Any
from urllib.parse import unquote

from clickhouse_connect.driver.httputil import get_pool_manager_options
from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager
from urllib3.util import make_headers, parse_url

from exporters.clickhouse.connection import Endpoint, TlsFiles, proxy_of


def connection_pool(endpoint: Endpoint) -> PoolManager:
    """The library's own choice ignores the proxy's password, and knows fewer forms of NO_PROXY."""
    return _pool(os.getpid(), proxy_of(endpoint), endpoint.tls if endpoint.scheme == "https" else TlsFiles())


@cache
def _pool(_process: int, proxy: str, tls: TlsFiles) -> PoolManager:
    """A forked process does not use its parent's connections."""
    files: dict[str, Any] = dict(tls.options())
    options = get_pool_manager_options(**files)
    if not proxy:
        return _Direct(**options)
    if login := parse_url(proxy).auth:
        options["proxy_headers"] = make_headers(proxy_basic_auth=unquote(login))
    return _Proxied(proxy, **options)


class _Direct(PoolManager):
    # PoolManager's signature, which differs from that of its own superclass.
    def urlopen(self, method: str, url: str, redirect: bool = True, **kw: Any) -> BaseHTTPResponse:  # type: ignore[override]
        return _not_redirected(super().urlopen(method, url, redirect=False, **kw))


class _Proxied(ProxyManager):
    def urlopen(self, method: str, url: str, redirect: bool = True, **kw: Any) -> BaseHTTPResponse:  # type: ignore[override]
        return _not_redirected(super().urlopen(method, url, redirect=False, **kw))


def _not_redirected(response: BaseHTTPResponse) -> BaseHTTPResponse:
    """Raises ConnectionError. Only a proxy redirects, and a statement that is sent on goes without its password."""
    if location := response.get_redirect_location():
        url = location.partition("?")[0]  # a query may be secret
        raise ConnectionError(errno.EPROTO, f"it redirects to {url}; name the server by that URL")
    return response
