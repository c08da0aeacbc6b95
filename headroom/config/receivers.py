"""Settings of the receivers that are off by default: gRPC and OTLP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from headroom.config.types import Bytes, Millis, OptionalListenAddress, Section

MIN_TOKEN_CHARS = 16


class AccessConfig(Section):
    """TLS and authentication of a receiver's callers."""

    certificate: Path | None = None  # PEM; None: no TLS
    private_key: Path | None = None
    client_ca: Path | None = None  # callers have to show a certificate that it signed
    # A caller is authenticated, and may state the facts of its clients' connections, by one of
    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN_CHARS)] | None = None  # a bearer token; HEADROOM_GRPC__TOKEN
    token_file: Path | None = None  # the same, one a line: the old and the new one while they change
    subjects: tuple[str, ...] = ()  # of its certificate, as in CN=plugin,OU=Kafka,C=DE
    # Others are served, too; what they state counts less. None: if none of the above is set.
    allow_unauthenticated: bool | None = None
    max_connections: int = Field(default=256, gt=0)
    max_concurrent_calls: int = Field(default=64, gt=0)
    receive_timeout_ms: Millis = 10_000

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

    listen: OptionalListenAddress = None  # None: there is no such endpoint; gRPC takes 0.0.0.0 for [::], which has both


class OtlpConfig(AccessConfig):
    """The OTLP receivers, for broker plug-ins and collectors."""

    grpc: OptionalListenAddress = None  # None: there is no such endpoint
    http: OptionalListenAddress = None  # `subjects` do not count here: tokens authenticate
    # Whose names of client id, instance, principal and broker are read; `any` reads all that are known.
    attributes: Literal["any", "kip-714", "instaclustr", "monedula", "strimzi"] = "any"
    max_message_bytes: Bytes = 4_194_304
    max_decompressed_bytes: Bytes = 16_777_216
