"""`python -m tests.bench.kit.receivers bare|headroom|reader DIRECTORY [INTERVAL_MS]`: receivers of pushes.

`bare` is a hand-written loop over uvloop and struct: it parses only what it needs for an answer, has no rules, stores
nothing and grants INTERVAL_MS. `headroom` has our connection, rules, and a spool that is flushed before the
acknowledgement; its clock advances on each call, so that no push is too early. `reader` finishes segments as they come.
"""

import asyncio
import itertools
import struct
import sys
import uuid
from pathlib import Path

import uvloop

from exporters.spool.reader import SpoolReader
from exporters.spool.writer import SpoolWriter
from telemetry.gateway.client_connection import GatewayOptions
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.networks import Administrators
from telemetry.gateway.server import Gateway
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile

INTERVAL_MS = 100
STEP_MS = 200  # step of our clock: at least an interval per call, and a round of all clients before any expires
START_MS = 1_700_000_000_000

_HEAD = struct.Struct(">ihhih")  # length, api_key, api_version, correlation_id, length of client_id
_PUSH = struct.Struct(">x16siBb")  # no tagged fields, client_instance_id, subscription_id, terminating, compression
_ANSWER = struct.Struct(">iixihx")
_GRANTED_MS = int(sys.argv[3]) if len(sys.argv) > 3 else INTERVAL_MS
_SUBSCRIBED = struct.pack(">xih16siBbiiBB", 0, 0, bytes(16), 1, 2, 4, _GRANTED_MS, 1 << 20, 1, 1) + b"\x00"


class Bare(asyncio.Protocol):
    """Requests that arrive in one piece are parsed in place."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, answers = 0, []
        while len(data) - at >= _HEAD.size:
            length, api_key, _, correlation_id, id_length = _HEAD.unpack_from(data, at)
            if len(data) - at < 4 + length:
                break
            answers.append(self._answer(data, at + _HEAD.size + id_length, api_key, correlation_id))
            at += 4 + length
        self._rest = data[at:]
        self._transport.write(b"".join(answers))  # type: ignore[attr-defined] # uvloop's transport

    @staticmethod
    def _answer(data: bytes, at: int, api_key: int, correlation_id: int) -> bytes:
        if api_key != 72:
            return struct.pack(">ii", 4 + len(_SUBSCRIBED), correlation_id) + _SUBSCRIBED
        _PUSH.unpack_from(data, at)
        at += _PUSH.size
        size = shift = 0
        while data[at] & 0x80:
            size |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
        size |= data[at] << shift
        payload = data[at + 1 : at + size]
        return _ANSWER.pack(12, correlation_id, 0, 0 if payload else 1)


async def bare(directory: Path) -> int:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    return int(server.sockets[0].getsockname()[1])


async def headroom(directory: Path) -> int:
    clock = itertools.count(START_MS, STEP_MS)
    spool = SpoolWriter(directory, "bench", segment_bytes=64 << 20, max_bytes=16 << 30)
    rules = ClientMetrics(new_id=lambda: uuid.uuid4().bytes)
    file = SubscriptionFile(directory / "subscriptions.yaml", rules, lambda: START_MS)
    file.keep({"all": {"metrics": "*", "interval.ms": str(INTERVAL_MS)}})
    gateway = Gateway(
        "bench",
        TelemetryReceiver(rules, append=spool.append, telemetry_max_bytes=1 << 20),
        [ListenerOptions("127.0.0.1", 0)],
        flush=spool.flush,
        observe=lambda _: None,
        now_ms=lambda: next(clock),
        local=SinkAnswers("bench", file, Administrators([])).found_at,
        options=GatewayOptions(connect_timeout_s=1),
    )
    asyncio.get_running_loop().create_task(_sync(spool))
    return (await gateway.start([]))[1]


async def _sync(spool: SpoolWriter) -> None:
    while True:
        await asyncio.sleep(1)
        await asyncio.to_thread(spool.sync)


async def reader(directory: Path) -> int:
    asyncio.get_running_loop().create_task(_read(SpoolReader(directory)))
    return 0


async def _read(spool: SpoolReader) -> None:
    while True:
        batch = spool.next_batch(100_000, 64 << 20)
        if batch is None:
            await asyncio.sleep(0.05)
        else:
            spool.begin(batch)
            spool.commit(batch)


async def main() -> None:
    start = {"bare": bare, "headroom": headroom, "reader": reader}[sys.argv[1]]
    print(await start(Path(sys.argv[2])), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
