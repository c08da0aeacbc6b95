"""The environment's proxy for a server: HTTP_PROXY, HTTPS_PROXY and ALL_PROXY in either case, unless NO_PROXY has its
name, its domain, its address or its network."""

import ipaddress
from urllib.parse import urlsplit


def environment_proxy(url: str) -> str:
    """The URL of the proxy by which the server of a URL is reached, "" for none."""
    from urllib.request import getproxies_environment  # a fifth of the time to import this module

    parts, proxies = urlsplit(url), getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if any(_is_excepted(parts.hostname or "", port, name.strip().lower()) for name in proxies.get("no", "").split(",")):
        return ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _is_excepted(host: str, port: int, name: str) -> bool:
    """Whether a name of NO_PROXY is that of the server."""
    if name in ("*", f"[{host}]", f"[{host}]:{port}"):
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        name, _, its_port = name.removeprefix("*").removeprefix(".").partition(":")
        return bool(name) and its_port in ("", str(port)) and f".{host}".endswith(f".{name}")


def through(proxy: str) -> str:
    """What errors add to a server's name: its proxy, without the password."""
    parts = urlsplit(proxy)
    return f" (through the proxy {parts.hostname}:{parts.port or 80})" if parts.hostname else ""
