"""Reads a broker's quota sensors over HTTP, from its Prometheus JMX exporter or Jolokia agent. Blocking."""

import base64
import time
from collections.abc import Iterable
from contextlib import closing
from enum import StrEnum
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from exporters.printable import one_line
from quota_metrics.jmx.prometheus import read_exposition
from quota_metrics.jmx.sensors import SensorReading, jolokia_request, read_jolokia

_CHUNK_BYTES = 65_536


class Agent(StrEnum):
    PROMETHEUS = "prometheus"
    JOLOKIA = "jolokia"


class Target(NamedTuple):
    """The metrics endpoint of one broker. `url` is http(s), with user and password if required."""

    broker_id: int
    agent: Agent
    url: str


class ScrapeError(Exception):
    """A target cannot be read; the message is one line and omits the target's password."""


def scrape(
    target: Target, *, timeout_s: float, max_bytes: int, clients: Iterable[tuple[str, str]] = ()
) -> SensorReading:
    """One scrape, which takes at most `timeout_s` plus one socket timeout. Raises ScrapeError."""
    is_jolokia, url = target.agent is Agent.JOLOKIA, urlsplit(target.url)
    if is_jolokia and not url.path.endswith("/"):
        url = url._replace(path=f"{url.path}/")  # without it the agent answers 404
    try:
        answer = _fetch(url, jolokia_request() if is_jolokia else None, timeout_s, max_bytes)
        return read_jolokia(answer) if is_jolokia else read_exposition(answer, clients)
    except (OSError, HTTPException, ValueError) as exc:
        raise ScrapeError(one_line(f"{type(exc).__name__}: {exc}")) from exc


def _fetch(url: SplitResult, body: bytes | None, timeout_s: float, max_bytes: int) -> bytes:
    deadline_s = time.monotonic() + timeout_s
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    with closing(kind(url.hostname or "", url.port, timeout=timeout_s)) as connection:
        headers = {} if body is None else {"Content-Type": "application/json"}
        if url.username is not None:
            secret = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise HTTPException(f"answered {response.status} {response.reason}")
        answer = bytearray()
        while chunk := response.read1(_CHUNK_BYTES):
            answer += chunk
            if len(answer) > max_bytes:
                raise ValueError(f"the response is larger than {max_bytes} bytes")
            if time.monotonic() > deadline_s:
                raise TimeoutError("the response takes too long")
        return bytes(answer)
