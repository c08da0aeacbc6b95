"""Builds and opens the OTLP receivers of `headroom serve`. Imported only if they are configured."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from typing import Any

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.writer import PushSpool
from headroom.config.settings import Address, OtlpConfig, ServeConfig
from headroom.errors import listening
from headroom.logs import thin_out
from headroom.server.access import access_of, tls_of
from headroom.server.http import HttpServer
from headroom.server.listeners.grpc_receiver import LOGGER
from headroom.server.metrics import Readings
from telemetry.gateway.server import Gateway
from telemetry.receiver.grpc_auth import Access
from telemetry.receiver.grpc_server import GrpcLimits, GrpcTls
from telemetry.receiver.otlp_export import OtlpLimits
from telemetry.receiver.otlp_grpc import OtlpGrpcServer
from telemetry.receiver.otlp_http import HttpLimits, otlp_app
from telemetry.receiver.otlp_identity import DIALECTS
from telemetry.receiver.otlp_receiver import OtlpReceiver


async def open_otlp(
    config: ServeConfig, gateway: Gateway, pushes: PushSpool, stack: AsyncExitStack
) -> tuple[dict[str, Address], Readings]:
    """Opens the receivers configured by `otlp.grpc` and `otlp.http`; returns their addresses by name. Raises
    ServeError."""
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
    access, tls = access_of(otlp, "otlp"), tls_of(otlp, "otlp")
    grace_s = config.gateway.drain_ms / 1000
    opened = {}
    if otlp.grpc is not None:
        opened["otlp-grpc"] = await _open_grpc(otlp, otlp.grpc, receiver, access, tls, grace_s, stack)
    if otlp.http is not None:
        opened["otlp-http"] = await _open_http(otlp, otlp.http, receiver, access, grace_s, stack)

    def readings() -> dict[SelfMetric, Values]:
        requests: dict[tuple[str, ...], float] = dict(receiver.requests.items())
        return {
            catalogue.OTLP_REQUESTS: requests,
            catalogue.OTLP_POINTS: receiver.points,
            catalogue.OTLP_REJECTED: receiver.rejected_points,
            catalogue.OTLP_REPLACED_TEXTS: receiver.replaced_texts,
        }

    return opened, readings


async def _open_grpc(
    otlp: OtlpConfig,
    listen: Address,
    receiver: OtlpReceiver,
    access: Access,
    tls: GrpcTls | None,
    grace_s: float,
    stack: AsyncExitStack,
) -> Address:
    thin_out(LOGGER)
    limits = GrpcLimits(
        max_message_bytes=min(otlp.max_message_bytes, otlp.max_decompressed_bytes),  # gRPC decompresses first
        max_connections=otlp.max_connections,
        max_concurrent_calls=otlp.max_concurrent_calls,
        receive_timeout_s=otlp.receive_timeout_ms / 1000,
    )
    server = OtlpGrpcServer(receiver, access, limits, tls)
    host, port = await listening(server.start(listen.host, listen.port), listen)
    stack.push_async_callback(server.stop, grace_s)
    return Address(host=host, port=port)


async def _open_http(
    otlp: OtlpConfig,
    listen: Address,
    receiver: OtlpReceiver,
    access: Access,
    grace_s: float,
    stack: AsyncExitStack,
) -> Address:
    limits = HttpLimits(
        max_body_bytes=otlp.max_message_bytes,
        max_decompressed_bytes=otlp.max_decompressed_bytes,
        max_concurrent_requests=otlp.max_concurrent_calls,
        receive_timeout_s=otlp.receive_timeout_ms / 1000,
    )
    app = otlp_app(receiver, access, limits)
    server = HttpServer(
        app, listen.host, listen.port, _tls_options(otlp), max_connections=otlp.max_connections, grace_s=grace_s
    )
    host, port = await listening(server.start(), listen)
    stack.push_async_callback(server.stop)
    return Address(host=host, port=port)


def _tls_options(otlp: OtlpConfig) -> dict[str, Any]:
    if otlp.certificate is None:
        return {}
    return {
        "ssl_certfile": otlp.certificate,
        "ssl_keyfile": otlp.private_key,
        "ssl_ca_certs": otlp.client_ca,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if otlp.client_ca else ssl.CERT_NONE,
    }
