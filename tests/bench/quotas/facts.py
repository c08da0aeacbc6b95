"""The p99 of a frame through the gateway while the facts of a cluster with 100,000 partitions are read, beside its p99
while none are: one client, one frame of 200 B in flight, taken in turn.

python -m tests.bench.quotas.facts [rounds]
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import uvloop
from kio.index import load_request_schema, load_response_schema

from quota_metrics.cluster.reading import read_facts
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Node
from telemetry.wire.apis import API_VERSIONS, DESCRIBE_CONFIGS, METADATA
from tests.bench.figure import tell
from tests.kit.gateways import LOOPBACK, new_gateway
from tests.kit.kio_entities import decode, encode, entity_of_fields
from tests.quota_metrics.kafka.fake_broker import Answer, FakeBroker, in_any_version, nodes, spans

TOPICS, PARTITIONS = 2_000, 50
BROKER_CONFIGS = 300
ROUNDS, ROUND_S = 10, 2.0
HEARTBEAT = 12
FRAME = struct.pack(">ihhih", 200, HEARTBEAT, 3, 7, 0) + bytes(190)
ANSWER = struct.pack(">iiih", 10, 7, 0, 0)


def cluster(port: int) -> Mapping[int, Answer]:
    """The answers of a broker with many partitions; those of Metadata are encoded once."""
    partition = {"leader_id": 1, "replica_nodes": [1, 2, 3], "isr_nodes": [1, 2, 3]}
    partitions = [partition | {"partition_index": index} for index in range(PARTITIONS)]
    topics = [{"name": f"a-topic-{number}", "partitions": partitions} for number in range(TOPICS)]
    brokers = [{"node_id": 1, "host": LOOPBACK, "port": port}]
    few = nodes((1, port))
    of_all: dict[int, bytes] = {}

    def metadata(frame: bytes) -> bytes | None:
        version = struct.unpack_from(">h", frame, 2)[0]
        if version >= 9:
            return few(frame)
        if version not in of_all:
            fields = {"brokers": brokers, "topics": topics}
            of_all[version] = encode(entity_of_fields(load_response_schema(METADATA, version), fields))
        return frame[4:8] + of_all[version]

    def described(frame: bytes) -> bytes | None:
        version = struct.unpack_from(">h", frame, 2)[0]
        body = frame[10 + struct.unpack_from(">h", frame, 8)[0] + (version >= 4) :]
        results = []
        for asked in decode(load_request_schema(DESCRIBE_CONFIGS, version), body).resources:
            keys = asked.configuration_keys or [f"a.configuration.of.a.broker.{n}" for n in range(BROKER_CONFIGS)]
            configs: list[dict[str, Any]] = [{"name": key, "value": "", "config_source": 5} for key in keys]
            results.append({"resource_name": asked.resource_name, "configs": configs})
        return in_any_version({"results": results})(frame)

    apis = {METADATA: (0, 13), DESCRIBE_CONFIGS: (1, 4), API_VERSIONS: (0, 3)}
    return {METADATA: metadata, DESCRIBE_CONFIGS: described, API_VERSIONS: spans(apis)}


async def serve_cluster() -> None:
    fake = FakeBroker({})
    server = await asyncio.start_server(fake.serve, LOOPBACK, 0)
    fake.port = server.sockets[0].getsockname()[1]
    fake.answers.update(cluster(fake.port))
    print(fake.port, flush=True)
    await asyncio.Event().wait()


def serve_frames() -> None:
    """Answers each frame; in threads, for a connection costs one."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while connection.recv(4_096):
        connection.sendall(ANSWER)


async def serve_gateway(frames_port: int, cluster_port: int) -> None:
    """Reads the facts again and again between a line `on` and a line `off`."""
    gateway = new_gateway()
    _, port = await gateway.start([Node(1, LOOPBACK, frames_port)])
    admin = KafkaAdmin([(LOOPBACK, cluster_port)])
    await read_facts(admin)
    admin.is_paced = True
    reading = asyncio.Event()
    print(port, flush=True)
    loop = asyncio.get_running_loop()

    def commands() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(reading.set if line.strip() == "on" else reading.clear)

    threading.Thread(target=commands, daemon=True).start()
    while True:
        await reading.wait()
        facts = await read_facts(admin)
        assert sum(facts.partitions.values()) == TOPICS * PARTITIONS
        await asyncio.sleep(0.01)


def p99_ms(connection: socket.socket, seconds: float) -> float:
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        connection.sendall(FRAME)
        connection.recv(4_096)
        took.append(time.perf_counter() - began)
    return 1000 * statistics.quantiles(took, n=100)[98]


def started(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A process of this module, and the port that it prints."""
    command = [sys.executable, "-m", "tests.bench.quotas.facts", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, next(line.strip() for line in process.stdout if line.strip().isdigit())  # behind what is logged


def rounds_of(gateway: subprocess.Popen[str], port: str, rounds: int) -> tuple[list[float], list[float]]:
    """p99 of each round, quiet and while facts are read."""
    assert gateway.stdin is not None
    quiet, busy = [], []
    with socket.create_connection((LOOPBACK, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        p99_ms(connection, ROUND_S)
        for _ in range(rounds):
            quiet.append(p99_ms(connection, ROUND_S))
            gateway.stdin.write("on\n")
            gateway.stdin.flush()
            time.sleep(0.1)
            busy.append(p99_ms(connection, ROUND_S))
            gateway.stdin.write("off\n")
            gateway.stdin.flush()
            time.sleep(0.5)
    return quiet, busy


def main(rounds: int) -> None:
    frames, frames_port = started("frames")
    many, cluster_port = started("cluster")
    gateway, port = started("gateway", frames_port, cluster_port)
    try:
        quiet, busy = rounds_of(gateway, port, rounds)
    finally:
        for process in (frames, many, gateway):
            process.kill()
    ratio = statistics.median(after / before for before, after in zip(quiet, busy, strict=True))
    tell("frame_p99_beside_facts", statistics.median(busy), "ms", ratio, "without", digits=3)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["frames"]:
            serve_frames()
        case ["cluster"]:
            asyncio.run(serve_cluster())
        case ["gateway", frames_port, cluster_port]:
            uvloop.run(serve_gateway(int(frames_port), int(cluster_port)))
        case _:
            main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
