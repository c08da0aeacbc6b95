"""Settings of forwarding by OTLP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from headroom.config.types import Bytes, Millis, Section, parse_http_url
from telemetry.forward.selection import ForwardSelection

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HTTP_PATH = "/v1/metrics"


def _endpoint(value: str) -> str:
    parse_http_url(value)
    parts = urlsplit(value)
    if parts.username or parts.query or parts.fragment:
        raise ValueError("is not http(s)://host[:port][/path]")
    return value


class ForwardConfig(Section):
    """Forwards what clients push to an OTLP endpoint. Off without `endpoint`."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    """http(s)://host[:port][/path]; none: no forwarding"""
    protocol: Literal["grpc", "http"] = "grpc"
    """OTLP/gRPC (`grpc`), or OTLP/HTTP with protobuf (`http`)"""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request, for example authorization"""
    ca: Path | None = None
    """CA of the endpoint's certificate, PEM; by default the system's CAs"""
    certificate: Path | None = None
    """Client certificate for the endpoint, PEM"""
    private_key: Path | None = None
    """Private key of `certificate`, PEM"""
    compression: Literal["none", "gzip", "zstd"] = "gzip"
    """Compression of requests; zstd with HTTP only"""
    timeout_ms: Millis = 10_000
    """Timeout of a request"""
    metrics: str = "*"
    """Forwarded metrics: prefixes of metric names separated by commas, as in a subscription; `*`: all"""
    match: str = ""
    """Forwarded clients: key=pattern pairs separated by commas, as in a subscription; empty: all"""
    max_lag_bytes: Bytes = 1_073_741_824
    """Spool kept for a receiver that does not answer; the oldest records are dropped first"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ForwardSelection(self.metrics, self.match)
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key need each other")
        if (self.ca or self.certificate) and not (self.endpoint or "").startswith("https:"):
            raise ValueError("ca and certificate need an endpoint with https")
        if self.protocol == "grpc" and self.compression == "zstd":
            raise ValueError("zstd is for protocol http: gRPC has gzip")
        if self.protocol == "grpc" and urlsplit(self.endpoint or "").path.strip("/"):
            raise ValueError("a gRPC endpoint has no path")
        if wrong := [name for name in self.headers if not _HEADER.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no name of a header")
        return self

    @property
    def url(self) -> str:
        """Where HTTP requests go: OTLP's own path unless the endpoint names one."""
        endpoint = self.endpoint or ""
        return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _HTTP_PATH

    @property
    def target(self) -> str:
        """HOST:PORT for gRPC; the port of the scheme unless the endpoint names one."""
        parts = urlsplit(self.endpoint or "")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
