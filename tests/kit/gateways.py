"""Gateways of this process: one without storage, and a stand-alone sink in a thread, with a spool and no storage worker
behind it."""

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from exporters.model import Connection
from exporters.spool.writer import SpoolWriter
from headroom.clock import now_ms
from telemetry.gateway.client_connection import GatewayOptions
from telemetry.gateway.connection_limits import AdmissionLimits
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.networks import LOOPBACK as LOOPBACK_NETWORKS
from telemetry.gateway.networks import Administrators, networks_of
from telemetry.gateway.responses import LocalAnswer
from telemetry.gateway.server import Gateway
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile
from tests.kit.loop_thread import LoopThread

LOOPBACK = "127.0.0.1"
_SINK = "sinkClusterAAAAAAAAAAA"


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


class RunningSink:
    """A stand-alone sink. A context manager; `bootstrap` is HOST:PORT, `file` what its subscriptions are kept in."""

    def __init__(self, directory: Path, host: str = LOOPBACK) -> None:
        self.rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
        self.file = SubscriptionFile(directory / "subscriptions.yaml", self.rules, now_ms)
        self._host = host
        self._writer = SpoolWriter(directory / "spool", "test", segment_bytes=1 << 26, max_bytes=1 << 30)

    def __enter__(self) -> Self:
        self._loop = LoopThread()
        self.bootstrap = self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._stop())
        self._loop.stop()

    async def _start(self) -> str:
        self.gateway = Gateway(
            _SINK,
            TelemetryReceiver(self.rules, append=self._writer.append, telemetry_max_bytes=1 << 20),
            [ListenerOptions(self._host, 0)],
            flush=self._writer.flush,
            observe=lambda _: None,
            now_ms=now_ms,
            local=SinkAnswers(_SINK, self.file, Administrators(networks_of(LOOPBACK_NETWORKS))).found_at,
            options=GatewayOptions(connect_timeout_s=30),
        )
        host, port = await self.gateway.start([])
        return f"{host}:{port}"

    async def _stop(self) -> None:
        await self.gateway.close(grace_s=2)
        self._writer.close()
