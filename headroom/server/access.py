"""Reads certificates and tokens of a receiver from the files in its settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from exporters.printable import one_line
from headroom.config.receivers import TOKEN, TOKEN_RULE, AccessConfig
from headroom.errors import ServeError
from telemetry.receiver.grpc_auth import Access
from telemetry.receiver.grpc_server import GrpcTls

log = structlog.get_logger(__name__)


def access_of(config: AccessConfig, name: str) -> Access:
    """The access rules of a receiver; `name` is its section of the settings. Raises ServeError."""
    tokens = tokens_of(config, name)
    if tokens and not config.certificate:
        log.warning("bearer tokens are sent in clear text: the receiver has no TLS", receiver=name)
    allowed = config.allow_unauthenticated
    return Access(
        tokens=tokens, subjects=config.subjects, direct=not config.authenticates if allowed is None else allowed
    )


def tls_of(config: AccessConfig, name: str) -> GrpcTls | None:
    """Loads certificate and key. Raises ServeError; gRPC itself would only report that it cannot listen."""
    if config.certificate is None or config.private_key is None:
        return None
    certificate = _read(config.certificate, f"{name}.certificate")
    private_key = _read(config.private_key, f"{name}.private_key")
    client_ca = _read(config.client_ca, f"{name}.client_ca") if config.client_ca else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.certificate, config.private_key, password="")
        if config.client_ca:
            context.load_verify_locations(config.client_ca)
    except (ssl.SSLError, ValueError) as exc:
        raise ServeError(f"cannot use the certificates of {name}: {one_line(exc)}") from exc
    return GrpcTls(certificate, private_key, client_ca)


def tokens_of(config: AccessConfig, name: str) -> list[str]:
    """The accepted bearer tokens. Raises ServeError."""
    if config.token_file is None:
        tokens, source = [config.token.get_secret_value()] if config.token else [], f"{name}.token"
    else:
        source = f"{name}.token_file"
        tokens = _read(config.token_file, source).decode("utf-8", "replace").split()
        if not tokens:
            raise ServeError(f"{source}: {config.token_file} contains no token")
    if not all(TOKEN.fullmatch(token) for token in tokens):
        raise ServeError(f"{source}: {TOKEN_RULE}")
    return tokens


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ServeError(f"{setting}: cannot read {path}: {exc.strerror}") from exc
