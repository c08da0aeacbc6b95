"""Settings of the receivers that are off by default: gRPC and OTLP."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from headroom.config.types import Bytes, Count, Millis, OptionalListenAddress, Section

MIN_TOKEN_CHARS = 16
TOKEN = re.compile(rf"[!-~]{{{MIN_TOKEN_CHARS},}}")
TOKEN_RULE = f"a token is at least {MIN_TOKEN_CHARS} visible ASCII characters"


class AccessConfig(Section):
    """TLS and authentication of a receiver's callers."""

    certificate: Path | None = None
    """Certificate, PEM; none: no TLS"""
    private_key: Path | None = None
    """Private key, PEM"""
    client_ca: Path | None = None
    """CA of client certificates, PEM; with it every caller must present one"""
    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = None
    """Bearer token of authenticated callers; use HEADROOM_GRPC__TOKEN or HEADROOM_OTLP__TOKEN"""
    token_file: Path | None = None
    """File of bearer tokens, one per line, so that an old and a new one can be valid at the same time"""
    subjects: tuple[str, ...] = ()
    """Certificate subjects of authenticated callers, for example CN=plugin,OU=Kafka,C=DE"""
    allow_unauthenticated: bool | None = None
    """Whether other callers are accepted; they can only state their own identity, or claims. none: only without token,
    token_file and subjects."""
    max_connections: Count = 256
    """Maximum number of connections"""
    max_concurrent_calls: Count = 64
    """Maximum number of calls in progress"""
    receive_timeout_ms: Millis = 10_000
    """Maximum time to receive a message"""

    @property
    def authenticates(self) -> bool:
        """Whether callers can authenticate."""
        return bool(self.token or self.token_file or self.subjects)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key need each other")
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs certificate and private_key")
        if self.subjects and not self.client_ca:
            raise ValueError("subjects need client_ca: without it their certificates cannot be verified")
        if self.token and self.token_file:
            raise ValueError("set either token or token_file, not both")
        if self.allow_unauthenticated is False and not self.authenticates:
            raise ValueError("allow_unauthenticated is off without token, token_file and subjects: nobody could call")
        return self


class GrpcConfig(AccessConfig):
    """The gRPC server for broker plug-ins and sidecars: telemetry/proto/headroom/telemetry/v1/telemetry.proto."""

    listen: OptionalListenAddress = None
    """Address of the gRPC receiver; none: off; 0.0.0.0 includes IPv6"""


class OtlpConfig(AccessConfig):
    """The OTLP receivers, for broker plug-ins and collectors."""

    grpc: OptionalListenAddress = None
    """Address of the OTLP/gRPC receiver; none: off"""
    http: OptionalListenAddress = None
    """Address of the OTLP/HTTP receiver; none: off; authenticates by token only"""
    attributes: Literal["any", "kip-714", "instaclustr", "monedula", "strimzi"] = "any"
    """Plug-in whose attribute names are read for client id, instance, principal and broker; `any`: all known"""
    max_message_bytes: Bytes = 4_194_304
    """Maximum size of a message before decompression"""
    max_decompressed_bytes: Bytes = 16_777_216
    """Maximum size of a message after decompression"""
