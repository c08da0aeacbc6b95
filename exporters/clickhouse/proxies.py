"""The proxy by which a ClickHouse server is asked: that of the environment, and none for what Headroom runs itself."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from exporters.clickhouse.connection import Endpoint


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
