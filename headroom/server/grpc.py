"""The gRPC server of `headroom serve`, built from its settings and opened. Imported only where it is wanted."""

from __future__ import annotations

import logging
import os
import re
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from exporters import self_metrics as catalogue
from headroom.config.settings import MIN_TOKEN_CHARS, Address, GrpcConfig, ServeConfig
from headroom.errors import ServeError, listening
from headroom.server.metrics import Readings
from telemetry.gateway.server import Gateway
from telemetry.receiver.grpc_auth import Access
from telemetry.receiver.grpc_codec import GrpcMessages

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # callers cause a line of its log each; what matters we tell ourselves
from telemetry.receiver.grpc_server import GrpcLimits, GrpcServer, Tls

log = structlog.get_logger(__name__)

_MESSAGE_HEAD_BYTES = 65_536  # what stands beside the payload, the facts of a connection most of all
_TOKEN = re.compile(rf"[!-~]{{{MIN_TOKEN_CHARS},}}")


class Seldom(logging.Filter):
    """Passes the 1st, 2nd, 4th, 8th ... record of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self._seen += 1
        return self._seen & (self._seen - 1) == 0


# gRPC tells of each caller that goes away before its answer, with a traceback.
logging.getLogger("grpc._cython.cygrpc").addFilter(Seldom())


async def open_grpc(
    config: ServeConfig, listen: Address, gateway: Gateway, stack: AsyncExitStack
) -> tuple[Address, Readings]:
    """Opens the receiver to the gateway's rules and spool; the address, and what it has to tell. Raises ServeError."""
    receiver = GrpcServer(
        GrpcMessages(gateway.receiver, gateway.cluster),
        access=_access(config.grpc),
        commit=gateway.commit,
        now_ms=gateway.now_ms,
        limits=GrpcLimits(
            max_message_bytes=config.telemetry.max_bytes + _MESSAGE_HEAD_BYTES,
            max_connections=config.grpc.max_connections,
            max_concurrent_calls=config.grpc.max_concurrent_calls,
            receive_timeout_s=config.grpc.receive_timeout_ms / 1000,
        ),
        tls=_tls(config.grpc),
    )
    host, port = await listening(receiver.start(listen.host, listen.port), listen)
    stack.push_async_callback(receiver.stop, config.gateway.drain_ms / 1000)

    def readings() -> dict[catalogue.SelfMetric, catalogue.Values]:
        return {catalogue.GRPC_REFUSED: {status.name: count for status, count in receiver.refused.items()}}

    return Address(host=host, port=port), readings


def _access(config: GrpcConfig) -> Access:
    tokens = _tokens(config)
    if tokens and not config.certificate:
        log.warning("bearer tokens come in the clear: the gRPC server has no TLS")
    allowed = config.allow_unauthenticated
    return Access(
        tokens=tokens, subjects=config.subjects, direct=not config.authenticates if allowed is None else allowed
    )


def _tokens(config: GrpcConfig) -> list[str]:
    """Raises ServeError."""
    if config.token_file is None:
        tokens, source = [config.token.get_secret_value()] if config.token else [], "grpc.token"
    else:
        tokens, source = (
            _read(config.token_file, "grpc.token_file").decode("utf-8", "replace").split(),
            "grpc.token_file",
        )
        if not tokens:
            raise ServeError(f"{source}: there is no token in {config.token_file}")
    if not all(_TOKEN.fullmatch(token) for token in tokens):
        raise ServeError(f"{source}: a token is at least {MIN_TOKEN_CHARS} visible ASCII characters")
    return tokens


def _tls(config: GrpcConfig) -> Tls | None:
    """Raises ServeError; gRPC itself would only say that it cannot listen."""
    if config.certificate is None or config.private_key is None:
        return None
    certificate = _read(config.certificate, "grpc.certificate")
    private_key = _read(config.private_key, "grpc.private_key")
    client_ca = _read(config.client_ca, "grpc.client_ca") if config.client_ca else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.certificate, config.private_key, password="")
        if config.client_ca:
            context.load_verify_locations(config.client_ca)
    except (ssl.SSLError, ValueError) as exc:
        raise ServeError(f"cannot use the certificates of the gRPC server: {' '.join(str(exc).split())}") from exc
    return Tls(certificate, private_key, client_ca)


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ServeError(f"{setting}: cannot read {path}: {exc.strerror}") from exc
