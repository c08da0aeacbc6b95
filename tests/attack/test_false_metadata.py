"""A broker whose Metadata names thousands of nonexistent nodes, in responses to clients only."""

from __future__ import annotations

import socketserver
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.attack.victim import attack, connect, frame
from tests.kit.network import subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import Served

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

METADATA, API_VERSIONS = 3, 18
FALSE_NODES = 3_000


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Liar(socketserver.BaseRequestHandler):
    """Answers ApiVersions and Metadata (1 for clients, 8 for Headroom itself); one node is true."""

    def handle(self) -> None:
        stream = self.request.makefile("rb")
        while len(size := stream.read(4)) == 4:
            request = stream.read(int.from_bytes(size, "big"))
            key, version = struct.unpack_from(">hh", request)
            answer = {METADATA: self._metadata, API_VERSIONS: self._api_versions}[key](version)
            self.request.sendall(struct.pack(">i", 4 + len(answer)) + request[4:8] + answer)

    def _api_versions(self, version: int) -> bytes:
        apis = [(METADATA, 0, 8), (API_VERSIONS, 0, 3)]
        if version < 3:
            return struct.pack(">hi", 0, len(apis)) + b"".join(struct.pack(">hhh", *api) for api in apis)
        entries = b"".join(struct.pack(">hhhB", *api, 0) for api in apis)
        return struct.pack(">hB", 0, len(apis) + 1) + entries + struct.pack(">iB", 0, 0)

    def _metadata(self, version: int) -> bytes:
        host, port = self.request.getsockname()
        nodes = [(1, str(host), port)]
        if version == 1:  # of a client: Headroom asks in version 8
            nodes += [(1000 + n, "127.0.0.1", 1 + n) for n in range(FALSE_NODES)]
        brokers = b"".join(
            struct.pack(">i", node) + _string(name) + struct.pack(">ih", at, -1) for node, name, at in nodes
        )
        listed = struct.pack(">i", len(nodes)) + brokers
        if version == 1:
            return listed + struct.pack(">ii", 1, 0)
        return struct.pack(">i", 0) + listed + _string("liar") + struct.pack(">iii", 1, 0, -(2**31))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Liar) as broker:
        broker.daemon_threads = True
        threading.Thread(target=broker.serve_forever, daemon=True).start()
        host, port = broker.server_address[:2]
        with Served(tmp_path, "--upstream", f"{host!s}:{port}") as running:
            yield running
        broker.shutdown()


def reported_ports(served: Served) -> list[int]:
    """Of all nodes that Metadata names to a client."""
    with RawConnection(served.kafka) as connection:
        body = connection.ask(METADATA, 1, struct.pack(">i", 0))
    (count,), at, ports = struct.unpack_from(">i", body), 4, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", body, at + 4)
        ports.append(struct.unpack_from(">i", body, at + 6 + length)[0])
        at += 6 + length + 6
    return ports


def listening(served: Served) -> int:
    found = psutil.Process(served.process.pid).net_connections("tcp")
    return sum(one.status == psutil.CONN_LISTEN for one in found)


def test_false_nodes_open_no_ports_and_divert_no_client(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    before = listening(served)
    bootstrap = served.address[1]
    with attack(served, f"Metadata that names {FALSE_NODES} false nodes", capsys) as report:
        for _ in range(5):
            true, *false = reported_ports(served)
            assert true != bootstrap
            assert (len(false), {*false}) == (FALSE_NODES, {bootstrap})
        for _ in range(20):  # each reaches the only real broker
            with RawConnection(served.kafka) as connection:
                assert subscription(connection, uuid.uuid4().bytes)[0] == 0
            with connect(served) as client:
                client.sendall(frame(API_VERSIONS, 0, b"", flexible=False))
                assert client.recv(4)
        report.shown = f"the bootstrap listener for each; {listening(served) - before} more ports"
    assert listening(served) == before
    assert served.metrics()["headroom_upstream_failures_total"] == 0
