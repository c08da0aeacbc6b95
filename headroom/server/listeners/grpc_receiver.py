"""The gRPC server of `headroom serve`, built from its settings. Imported only when it is configured."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from exporters import self_metrics as catalogue
from headroom.config.settings import Address, ServeConfig
from headroom.errors import listening
from headroom.logs import thin_out
from headroom.server.access import access_of, tls_of
from headroom.server.metrics import Readings
from telemetry.gateway.server import Gateway
from telemetry.receiver.grpc_codec import GrpcMessages

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC logs a line per caller; Headroom logs what matters
from telemetry.receiver.grpc_server import GrpcLimits, GrpcServer

LOGGER = "grpc._cython.cygrpc"  # logs a traceback for each caller that disconnects before its response
_MESSAGE_HEAD_BYTES = 65_536  # the fields other than the payload


async def open_grpc(
    config: ServeConfig, listen: Address, gateway: Gateway, stack: AsyncExitStack
) -> tuple[Address, Readings]:
    """Opens the receiver with the gateway's rules and spool; returns its address and readings. Raises ServeError."""
    thin_out(LOGGER)
    receiver = GrpcServer(
        GrpcMessages(gateway.receiver, gateway.cluster),
        access=access_of(config.grpc, "grpc"),
        commit=gateway.commit,
        now_ms=gateway.now_ms,
        limits=GrpcLimits(
            max_message_bytes=config.telemetry.max_bytes + _MESSAGE_HEAD_BYTES,
            max_connections=config.grpc.max_connections,
            max_concurrent_calls=config.grpc.max_concurrent_calls,
            receive_timeout_s=config.grpc.receive_timeout_ms / 1000,
        ),
        tls=tls_of(config.grpc, "grpc"),
    )
    host, port = await listening(receiver.start(listen.host, listen.port), listen)
    stack.push_async_callback(receiver.stop, config.gateway.drain_ms / 1000)

    def readings() -> dict[catalogue.SelfMetric, catalogue.Values]:
        return {catalogue.GRPC_REFUSED: {status.name: count for status, count in receiver.refused.items()}}

    return Address(host=host, port=port), readings
