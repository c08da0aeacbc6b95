"""The gRPC and OTLP receivers of `headroom serve`, built from their settings. Imported only if one is configured."""

import os
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from exporters import self_metrics as catalogue
from exporters.printable import one_line
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import PushSpool
from headroom.config.receivers import TOKEN, TOKEN_RULE, AccessConfig
from headroom.config.settings import Address, ServeConfig
from headroom.errors import ServeError
from headroom.logs import thin_out
from headroom.server.addresses import listening
from headroom.server.http import HttpServer
from headroom.server.metrics import Readings, summed
from telemetry.gateway.server import Gateway
from telemetry.receiver.grpc_auth import Access
from telemetry.receiver.grpc_codec import GrpcMessages
from telemetry.receiver.otlp_export import OtlpLimits
from telemetry.receiver.otlp_http import HttpLimits, otlp_app
from telemetry.receiver.otlp_identity import DIALECTS
from telemetry.receiver.otlp_receiver import OtlpReceiver

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC logs a line per caller; Headroom logs what matters
from telemetry.receiver.grpc_server import GrpcLimits, GrpcServer, GrpcTls
from telemetry.receiver.otlp_grpc import OtlpGrpcServer

log = structlog.get_logger(__name__)

_LOGGER = "grpc._cython.cygrpc"  # logs a traceback for each caller that disconnects before its response
_MESSAGE_HEAD_BYTES = 65_536  # the fields other than the payload


async def open_receivers(
    config: ServeConfig, gateway: Gateway, pushes: PushSpool, stack: AsyncExitStack
) -> tuple[dict[str, Address], Readings]:
    """Opens the configured receivers; returns their addresses by name, and their readings. Raises ServeError."""
    thin_out(_LOGGER)
    opened: dict[str, Address] = {}
    readings: list[Readings] = []
    if config.grpc.listen is not None:
        server = GrpcServer(  # of plug-ins, with the gateway's rules and spool
            GrpcMessages(gateway.receiver, gateway.cluster),
            access=_access(config.grpc, "grpc"),
            commit=gateway.commit,
            now_ms=gateway.now_ms,
            limits=_grpc_limits(config.grpc, config.telemetry.max_bytes + _MESSAGE_HEAD_BYTES),
            tls=tls_of(config.grpc, "grpc"),
        )
        opened["grpc"] = await _open(server, config.grpc.listen, config, stack)
        refused = server.refused
        readings.append(lambda: {catalogue.GRPC_REFUSED: {status.name: count for status, count in refused.items()}})
    if config.otlp.grpc is not None or config.otlp.http is not None:
        addresses, of_otlp = await _open_otlp(config, gateway, pushes, stack)
        opened |= addresses
        readings.append(of_otlp)
    return opened, summed(*readings)


async def _open_otlp(
    config: ServeConfig, gateway: Gateway, pushes: PushSpool, stack: AsyncExitStack
) -> tuple[dict[str, Address], Readings]:
    otlp = config.otlp
    receiver = OtlpReceiver(
        pushes,
        gateway.commit,
        cluster=gateway.cluster,
        dialect=DIALECTS[otlp.attributes],
        now_ms=gateway.now_ms,
        limits=OtlpLimits(),
        charge=lambda address, nbytes: gateway.receiver.charge_address(address, nbytes, gateway.now_ms()),
    )
    access, tls = _access(otlp, "otlp"), tls_of(otlp, "otlp")
    opened = {}
    if otlp.grpc is not None:
        most_bytes = min(otlp.max_message_bytes, otlp.max_decompressed_bytes)  # gRPC decompresses first
        grpc = OtlpGrpcServer(receiver, access, _grpc_limits(otlp, most_bytes), tls)
        opened["otlp-grpc"] = await _open(grpc, otlp.grpc, config, stack)
    if otlp.http is not None:
        limits = HttpLimits(
            max_body_bytes=otlp.max_message_bytes,
            max_decompressed_bytes=otlp.max_decompressed_bytes,
            max_concurrent_requests=otlp.max_concurrent_calls,
            receive_timeout_s=otlp.receive_timeout_ms / 1000,
        )
        options = {
            "ssl_certfile": otlp.certificate,
            "ssl_keyfile": otlp.private_key,
            "ssl_ca_certs": otlp.client_ca,
            "ssl_cert_reqs": ssl.CERT_REQUIRED if otlp.client_ca else ssl.CERT_NONE,
        }
        http = HttpServer(
            otlp_app(receiver, access, limits),
            otlp.http.host,
            otlp.http.port,
            options if otlp.certificate else {},
            max_connections=otlp.max_connections,
            grace_s=config.gateway.drain_ms / 1000,
        )
        opened["otlp-http"] = await listening(http.start(), otlp.http)
        stack.push_async_callback(http.stop)

    def readings() -> dict[SelfMetric, Values]:
        requests: dict[tuple[str, ...], float] = dict(receiver.requests.items())
        return {
            catalogue.OTLP_REQUESTS: requests,
            catalogue.OTLP_POINTS: receiver.points,
            catalogue.OTLP_REJECTED: receiver.rejected_points,
            catalogue.OTLP_REPLACED_TEXTS: receiver.replaced_texts,
        }

    return opened, readings


async def _open(
    server: GrpcServer | OtlpGrpcServer, listen: Address, config: ServeConfig, stack: AsyncExitStack
) -> Address:
    address = await listening(server.start(listen.host, listen.port), listen)
    stack.push_async_callback(server.stop, config.gateway.drain_ms / 1000)
    return address


def _grpc_limits(config: AccessConfig, max_message_bytes: int) -> GrpcLimits:
    return GrpcLimits(
        max_message_bytes=max_message_bytes,
        max_connections=config.max_connections,
        max_concurrent_calls=config.max_concurrent_calls,
        receive_timeout_s=config.receive_timeout_ms / 1000,
    )


def _access(config: AccessConfig, name: str) -> Access:
    """`name`: the receiver's section of the settings. Raises ServeError."""
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
