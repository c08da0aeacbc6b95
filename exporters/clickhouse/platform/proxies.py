"""The proxy by which a ClickHouse server is asked: that of the environment, and none for what Headroom runs itself."""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from exporters.clickhouse.connection import Endpoint, TlsFiles

if TYPE_CHECKING:  # imported late: only a statement needs it, and it is slow
    from urllib3 import PoolManager


def proxy_of(endpoint: Endpoint) -> str:
    """The URL of the proxy by which the environment has the server reached, "" for none: HTTP_PROXY, HTTPS_PROXY and
    ALL_PROXY in either case, unless NO_PROXY has its name, its domain, its address or its network."""
    if endpoint.is_direct:
        return ""
    from urllib.request import getproxies_environment  # a fifth of the time to import this module

    proxies = getproxies_environment()
    proxy = proxies.get(endpoint.scheme) or proxies.get("all") or ""
    if any(_is_excepted(endpoint, name.strip().lower()) for name in proxies.get("no", "").split(",")):
        return ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _is_excepted(endpoint: Endpoint, name: str) -> bool:
    """Whether a name of NO_PROXY is that of the server."""
    host = endpoint.host.lower()
    if name == "*" or name in (endpoint.netloc.lower(), f"[{host}]"):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        name, _, port = name.removeprefix("*").removeprefix(".").partition(":")
        return bool(name) and port in ("", str(endpoint.port)) and f".{host}".endswith(f".{name}")


def named_with_proxy(endpoint: Endpoint) -> str:
    """What errors name: the server, and the proxy by which it is asked, without its password."""
    proxy = urlsplit(proxy_of(endpoint))
    return f"{endpoint} (through the proxy {proxy.hostname}:{proxy.port or 80})" if proxy.hostname else str(endpoint)


def connection_pool(endpoint: Endpoint) -> PoolManager:
    """Connections to this server, by the environment's proxy if it has one. The library's own choice ignores the
    proxy's password, and knows fewer forms of NO_PROXY."""
    from clickhouse_connect.driver.httputil import default_pool_manager

    proxy, tls = proxy_of(endpoint), endpoint.tls if endpoint.scheme == "https" else TlsFiles()
    return _pool(os.getpid(), proxy, tls) if proxy or tls != TlsFiles() else default_pool_manager()


@cache
def _pool(_process: int, proxy: str, tls: TlsFiles) -> PoolManager:
    """A forked process does not use its parent's connections."""
    from clickhouse_connect.driver.httputil import get_pool_manager
    from urllib3.util import make_headers, parse_url

    login = parse_url(proxy).auth if proxy else None
    options: dict[str, Any] = dict(tls.options())
    if login:
        options["proxy_headers"] = make_headers(proxy_basic_auth=unquote(login))
    return cast("PoolManager", get_pool_manager(http_proxy=proxy, **options))
