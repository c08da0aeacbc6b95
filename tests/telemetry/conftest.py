"""A gateway in this process in front of a real cluster, with a spool and without a storage worker."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporters.model import RecordKind
from exporters.spool.writer import SpoolWriter
from headroom.clock import now_ms
from headroom.demo.broker import LocalCluster
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.authentication import Security
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.measure.usage_meter import UsageMeter
from telemetry.gateway.broker_ports import BrokerNames, PortOptions
from telemetry.gateway.client_connection import GatewayOptions
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.server import Gateway
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from tests.kit.loop_thread import LoopThread

_PLAINTEXT = ListenerSecurity()


class RunningGateway(LoopThread):
    """A Gateway in its own thread and event loop."""

    def __init__(
        self,
        upstream: str,
        spool: Path,
        meter: UsageMeter | None = None,
        *,
        security: ListenerSecurity = _PLAINTEXT,
        admin: Security | None = None,
        names: BrokerNames | None = None,
    ) -> None:
        self._names = names
        self.records: list[tuple[RecordKind, bytes]] = []  # of the spool, as they were appended
        self._security = security
        self._admin_security = admin
        self.meter = UsageMeter("test") if meter is None else meter
        self.rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
        self._writer = SpoolWriter(spool, "test", segment_bytes=1 << 26, max_bytes=1 << 30)
        self.receiver = TelemetryReceiver(self.rules, append=self._append, telemetry_max_bytes=1 << 20)
        self._upstream = [(host, int(port)) for host, _, port in (a.rpartition(":") for a in upstream.split(","))]
        super().__init__()
        self.bootstrap = self.run(self._start())

    def _append(self, kind: RecordKind, body: bytes) -> None:
        self._writer.append(kind, body)
        self.records.append((kind, body))

    async def _start(self) -> str:
        self._admin = KafkaAdmin(self._upstream, security=self._admin_security)
        cluster = await self._admin.describe_cluster()
        self.gateway = Gateway(
            "test",
            self.receiver,
            [ListenerOptions("127.0.0.1", 0, security=self._security, ports=PortOptions(names=self._names))],
            flush=self._writer.flush,
            observe=self.meter.exchange,
            now_ms=now_ms,
            options=GatewayOptions(connect_timeout_s=30),
        )
        host, port = await self.gateway.start(cluster.nodes)
        await self._refresh()
        return f"{host}:{port}"

    async def _refresh(self) -> None:
        self.rules.replace_all(await read_subscriptions(self._admin), now_ms())

    def stop(self) -> None:
        self.run(self._close())
        super().stop()

    async def _close(self) -> None:
        await self.gateway.close(grace_s=2)
        await self._admin.aclose()
        self._writer.close()


@pytest.fixture(scope="session")
def gateway_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunningGateway]]:
    """Starts a gateway in front of the brokers at a bootstrap address."""
    running: list[RunningGateway] = []

    def start(upstream: str) -> RunningGateway:
        running.append(RunningGateway(upstream, tmp_path_factory.mktemp("spool")))
        return running[-1]

    yield start
    for gateway in running:
        gateway.stop()


@pytest.fixture(scope="session")
def gateway(kafka: LocalCluster, gateway_to: Callable[[str], RunningGateway]) -> RunningGateway:
    """In front of the shared broker."""
    return gateway_to(kafka.bootstrap)
