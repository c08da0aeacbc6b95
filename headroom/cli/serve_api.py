"""Asks the API of a running `headroom serve`."""

import http.client
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import orjson

from exporters.printable import one_line
from headroom.errors import ArgumentError

START: Final = "; start `headroom serve`, or name its address with --http (http= in the first line that it prints)"
_TIMEOUT_S = 10.0
_TOKEN = re.compile(r"[!-~]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def ask(address: str, path: str, query: Mapping[str, str], token: str | None = None) -> Any:
    """A JSON response of the API. `address` is HOST:PORT or a URL. `token`: None for that of the environment.

    Raises ConnectionError when no `headroom serve` answers, ArgumentError for an invalid address, token or query.
    """
    connect, host, port = _parsed(address)
    variable = "HEADROOM_WEB__TOKEN"
    secret = _checked(variable, os.environ.get(variable, "")) if token is None else token
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    try:
        connection = connect(host, port, timeout=_TIMEOUT_S)
        connection.request("GET", f"{path}?{urlencode(query, errors='replace')}", headers=headers)
        response = connection.getresponse()
        body = response.read()
    except OSError as exc:
        hint = START if isinstance(exc, ConnectionRefusedError) else ""
        raise ConnectionError(f"cannot reach {address}: {exc.strerror or exc}{hint}") from exc
    except http.client.HTTPException as exc:
        raise ConnectionError(f"{address} broke off, or does not speak HTTP: {exc!r}") from exc
    if response.status == 400:
        raise ArgumentError(_error(response.status, body))
    if response.status != 200:
        raise ConnectionError(f"{address}: {_error(response.status, body)}")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ConnectionError(f"{address} answers, but is not the HTTP address of `headroom serve`") from exc


def _parsed(address: str) -> tuple[type[http.client.HTTPConnection], str, int]:
    """The kind of connection, host and port. Raises ArgumentError."""
    url = address if "//" in address else f"http://{address}"
    with suppress(ValueError):  # from an invalid bracket, port or host name
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (_DEFAULT_PORTS.get(parts.scheme) if url == address else None)
        if host.encode("idna") and port and parts.scheme in _DEFAULT_PORTS:
            connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            return connect, host, port
    raise ArgumentError(f"--http {address!r} is not HOST:PORT or http(s)://HOST[:PORT]")


def token_of(flag: str) -> str:
    """The token that a flag gives: itself, or `@FILE`. Raises ArgumentError, whose message does not contain it."""
    if not flag.startswith("@"):
        return _checked("--token", flag)
    try:
        return _checked(flag[1:], Path(flag[1:]).read_text("utf-8").strip())
    except (OSError, ValueError) as exc:
        raise ArgumentError(f"--token: cannot read {flag[1:]}") from exc


def _checked(name: str, token: str) -> str:
    """Raises ArgumentError, whose message does not contain the token."""
    if not _TOKEN.fullmatch(token):
        raise ArgumentError(f"{name} has characters other than visible ASCII")
    return token


def _error(status: int, body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"answered {status}: {one_line(body.decode('utf-8', 'replace'))[:200]}"
