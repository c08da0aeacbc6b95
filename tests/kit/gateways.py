"""A gateway of this process without storage."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from exporters.model import Connection
from telemetry.gateway.connection_limits import AdmissionLimits
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.responses import LocalAnswer
from telemetry.gateway.server import Gateway, GatewayOptions
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics

LOOPBACK = "127.0.0.1"


def new_gateway(
    flush: Callable[[], None] = lambda: None,
    local: Callable[[str, int, Connection], Mapping[int, LocalAnswer]] | None = None,
    listener: ListenerOptions = ListenerOptions(LOOPBACK, 0),
    connect_timeout_s: float = 5,
    **limits: float,
) -> Gateway:
    rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
    return Gateway(
        "test",
        TelemetryReceiver(rules, append=lambda *_: None, telemetry_max_bytes=1_000),
        [listener],
        flush=flush,
        observe=lambda _: None,
        now_ms=lambda: 1_700_000_000_000,
        local=local,
        options=GatewayOptions(
            admission=AdmissionLimits(**limits),  # type: ignore[arg-type] # ints among them
            connect_timeout_s=connect_timeout_s,
        ),
    )
