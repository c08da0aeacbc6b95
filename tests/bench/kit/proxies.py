"""`python -m tests.bench.kit.proxies KIND BROKER_PORT [CERTIFICATE KEY]`: proxies in front of one broker.

Prints the port. `blind` copies bytes both ways; `headroom` is our gateway with its usage meter, and `topics` the same
with the topics of 1 % of the frames. With a certificate, all terminate the clients' TLS.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

import uvloop

from exporters.spool.writer import SpoolWriter
from headroom.clock import now_ms
from headroom.logs import configure_logging
from headroom.server.process_limits import tune_for_connections
from quota_metrics.kafka.cluster import Node
from quota_metrics.measure.topic_meter import TopicMeter
from quota_metrics.measure.usage_meter import UsageMeter
from telemetry.gateway.client_connection import GatewayOptions
from telemetry.gateway.connection import ConnectionLimits
from telemetry.gateway.connection_limits import AdmissionLimits
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.security.listener_security import ListenerSecurity, ListenerTls
from telemetry.gateway.server import Gateway
from telemetry.gateway.topic_sampling import TopicSampler
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics

_Start: TypeAlias = Callable[[int, ssl.SSLContext | None], Awaitable[int]]

LOOPBACK = "127.0.0.1"
_METER_S = 1.0
_SAMPLE = 0.01
_ANY = 1 << 20  # connections


class Blind(asyncio.Protocol):
    """One side of a connection; the other one is opened for a client, and bytes wait for it."""

    def __init__(self, broker: int | None = None, other: Blind | None = None) -> None:
        self._broker = broker
        self._other = other
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._broker is not None:
            self._opening = asyncio.create_task(self._open(self._broker))

    async def _open(self, broker: int) -> None:
        loop = asyncio.get_running_loop()
        _, self._other = await loop.create_connection(lambda: Blind(other=self), LOOPBACK, broker)
        for data in self._early:
            self._other.write(data)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
        else:
            self._other.write(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None:
            self._other._transport.close()


async def blind(broker: int, tls: ssl.SSLContext | None) -> int:
    server = await asyncio.get_running_loop().create_server(lambda: Blind(broker), LOOPBACK, 0, ssl=tls, backlog=1024)
    return int(server.sockets[0].getsockname()[1])


async def headroom(broker: int, tls: ssl.SSLContext | None, *, topics: bool = False) -> int:
    tune_for_connections()
    spool = SpoolWriter(Path(tempfile.gettempdir()), "bench", segment_bytes=1 << 20, max_bytes=1 << 30)
    rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
    meter, topic_meter = UsageMeter("bench"), TopicMeter()
    sampler = TopicSampler(_SAMPLE, random.Random(1).random, topic_meter.observe) if topics else None
    gateway = Gateway(
        "bench",
        TelemetryReceiver(rules, append=spool.append, telemetry_max_bytes=1 << 20),
        [ListenerOptions(LOOPBACK, 0, security=ListenerSecurity(protocol="SSL" if tls else "PLAINTEXT", tls=tls))],
        flush=spool.flush,
        observe=meter.exchange,
        now_ms=now_ms,
        options=GatewayOptions(
            limits=ConnectionLimits(topics=sampler),
            admission=AdmissionLimits(max_connections=_ANY, max_connections_per_address=_ANY, handshake_timeout_s=60),
            connect_timeout_s=10,
        ),
    )

    async def sample() -> None:
        while True:
            await asyncio.sleep(_METER_S)
            meter.samples(now_ms())

    asyncio.get_running_loop().create_task(sample())
    return (await gateway.start([Node(1, LOOPBACK, broker)]))[1]


async def main() -> None:
    kinds: dict[str, _Start] = {"blind": blind, "headroom": headroom, "topics": partial(headroom, topics=True)}
    start = kinds[sys.argv[1]]
    context = None
    if len(sys.argv) > 3:
        files = Path(sys.argv[3]), Path(sys.argv[4])
        if start is blind:  # Python's own, with what ListenerTls requires of it
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(*files)
        else:
            context = ListenerTls(*files, None, "none").context
    print(await start(int(sys.argv[2]), context), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    configure_logging()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
