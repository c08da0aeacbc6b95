"""A stand-alone sink in a thread, with a spool and no storage worker behind it."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from exporters.spool.writer import SpoolWriter
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.networks import LOOPBACK, Administrators, networks_of
from telemetry.gateway.server import Gateway, GatewayOptions
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile
from tests.kit.loop_thread import LoopThread

CLUSTER = "sinkClusterAAAAAAAAAAA"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RunningSink:
    """A context manager; `bootstrap` is HOST:PORT, `file` what its subscriptions are kept in."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self.rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
        self.file = SubscriptionFile(directory / "subscriptions.yaml", self.rules, now_ms)
        self._host = host
        self._writer = SpoolWriter(directory / "spool", "test", segment_bytes=1 << 26, max_bytes=1 << 30)

    def __enter__(self) -> RunningSink:
        self._loop = LoopThread()
        self.bootstrap = self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._stop())
        self._loop.stop()

    async def _start(self) -> str:
        self.gateway = Gateway(
            CLUSTER,
            TelemetryReceiver(self.rules, append=self._writer.append, telemetry_max_bytes=1 << 20),
            [ListenerOptions(self._host, 0)],
            flush=self._writer.flush,
            observe=lambda _: None,
            now_ms=now_ms,
            local=SinkAnswers(CLUSTER, self.file, Administrators(networks_of(LOOPBACK))).found_at,
            options=GatewayOptions(connect_timeout_s=30),
        )
        host, port = await self.gateway.start([])
        return f"{host}:{port}"

    async def _stop(self) -> None:
        await self.gateway.close(grace_s=2)
        self._writer.close()
