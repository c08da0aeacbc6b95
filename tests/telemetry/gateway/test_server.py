"""The gateway's sockets and their limits: unreachable brokers, clients that reset, send invalid bytes or are idle."""

import asyncio
import socket
import ssl
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from quota_metrics.kafka.cluster import Node
from telemetry.gateway.connection import ConnectionLimits
from telemetry.gateway.connection_limits import Admission, AdmissionLimits, Reason
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.networks import networks_of
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.gateway.server import close_idle
from tests.kit import wire
from tests.kit.gateways import LOOPBACK, new_gateway
from tests.kit.grpc_servers import in_loop, until

OUTSIDE = "127.0.0.2"
ESTABLISHED, FIN_WAIT1, KEEPALIVE = 1, 4, 2  # in /proc/net/tcp


async def received_bytes(address: tuple[str, int]) -> bytes:
    """All bytes that a silent client receives."""
    reader, writer = await asyncio.open_connection(*address)
    received = await reader.read()
    writer.close()
    return received


async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture
def broker_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as receiver:
        return int(receiver.getsockname()[1])


@in_loop
async def test_broker_outage_is_counted_per_client_and_logged_once(broker_port: int) -> None:
    gateway = new_gateway()
    with capture_logs() as logs:
        address = await gateway.start([Node(3, LOOPBACK, broker_port)])
        for _ in range(3):
            assert await received_bytes(address) == b""
        async with await asyncio.start_server(greet, LOOPBACK, broker_port):
            for _ in range(2):
                assert await received_bytes(address) == b""
        assert await received_bytes(address) == b""
        await gateway.close(grace_s=1)
    reported = [(entry["log_level"], entry["broker_id"]) for entry in logs if entry["event"] != "listener opened"]
    assert reported == [("warning", 3), ("info", 3), ("warning", 3)]
    assert (gateway.upstream_failures, len(gateway.clients)) == (4, 0)


@in_loop
async def test_broker_with_an_odd_host_name_or_outside_the_networks_hides_no_other(broker_port: int) -> None:
    gateway = new_gateway()
    gateway.options = replace(gateway.options, upstream_networks=networks_of([LOOPBACK]))
    nodes = [Node(1, "b" * 64 + ".example", 9092), Node(2, OUTSIDE, broker_port), Node(3, LOOPBACK, broker_port)]
    address = await gateway.start(nodes)
    async with await asyncio.start_server(greet, [LOOPBACK, OUTSIDE], broker_port):
        for _ in range(4):  # each begins with another broker, and with none that did not answer the last time
            assert await received_bytes(address) == b""
    await gateway.close(grace_s=1)
    assert gateway.upstream_failures == 2


@in_loop
async def test_sasl_is_timed_from_when_a_broker_is_reached(broker_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = new_gateway(listener=ListenerOptions(LOOPBACK, 0, security=ListenerSecurity("SASL_PLAINTEXT")))
    timed = list[object]()
    monkeypatch.setattr(gateway.admission, "handshake_began", lambda client, _now_s: timed.append(client))
    address = await gateway.start([Node(3, LOOPBACK, broker_port)])
    assert (await received_bytes(address), timed) == (b"", [])
    async with await asyncio.start_server(lambda *_: None, LOOPBACK, broker_port):
        _, client = await asyncio.open_connection(*address)
        await until(lambda: len(timed) == 1)
        client.close()
        await gateway.close(grace_s=0)


@in_loop
async def test_no_further_broker_is_tried_for_a_client_that_has_left() -> None:
    tls = ListenerSecurity(upstream_tls=ssl.create_default_context())
    gateway = new_gateway(listener=ListenerOptions(LOOPBACK, 0, security=tls), connect_timeout_s=0.5)
    tried = list[object]()
    async with await asyncio.start_server(lambda *ends: tried.append(ends), LOOPBACK, 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        _, client = await asyncio.open_connection(*await gateway.start([Node(id, LOOPBACK, port) for id in range(3)]))
        client.write(wire.request(wire.GET, bytes(17)))
        await until(lambda: len(tried) == 1)
        client.close()
        await until(lambda: not gateway.clients)
        await gateway.close(grace_s=0)
    assert (len(tried), gateway.upstream_failures) == (1, 1)


def connection_of(port: int, peer_port: int) -> tuple[int, int, float]:
    """TCP's state, kind of timer and seconds until it fires, of a connection of this machine (proc_net_tcp.txt)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, own, peer, state, _, timer, *_ = line.split()
        if (int(own[-4:], 16), int(peer[-4:], 16)) == (port, peer_port):
            return int(state, 16), int(timer[:2], 16), int(timer[3:], 16) / 100
    return 0, 0, 0.0


@in_loop
async def test_idle_peers_are_probed_and_brokers_asked_however_long_clients_may_be_idle() -> None:
    gateway = new_gateway(idle_timeout_s=86_400.0, keep_alive_s=0.05)
    with socket.create_server((LOOPBACK, 0)) as broker:
        _, port = address = await gateway.start([Node(3, *broker.getsockname())])
        _, client = await asyncio.open_connection(*address)
        upstream, (_, upstream_port) = await asyncio.to_thread(broker.accept)
        upstream.settimeout(60)
        assert await asyncio.to_thread(upstream.recv, 100) == wire.request(18, b"", b"", correlation_id=0)
        ends = ((port, client.get_extra_info("sockname")[1]), (upstream_port, broker.getsockname()[1]))
        await until(lambda: all(connection_of(*end)[:2] == (ESTABLISHED, KEEPALIVE) for end in ends))
        assert all(100 < connection_of(*end)[2] <= 120 for end in ends)
        client.close()
        upstream.close()
        await gateway.close(grace_s=0)


@in_loop
async def test_client_that_leaves_while_its_broker_hangs_keeps_no_connection() -> None:
    gateway = new_gateway(keep_alive_s=0.1, last_writes_s=0.1)
    with socket.create_server((LOOPBACK, 0)) as broker:
        client = socket.create_connection(await gateway.start([Node(3, LOOPBACK, broker.getsockname()[1])]))
        upstream, (_, upstream_port) = await asyncio.to_thread(broker.accept)
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(client.sendall, struct.pack(">ihhih", 100_000_000, 3, 1, 1, 0) + bytes(99_999_990))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: connection_of(upstream_port, broker.getsockname()[1])[0] == FIN_WAIT1)
        upstream.close()
        await gateway.close(grace_s=0)


@pytest.mark.parametrize("alone", [True, False])
@in_loop
async def test_client_reset_before_accept_leaks_nothing(alone: bool) -> None:
    async with await asyncio.start_server(greet, LOOPBACK, 0) as broker:
        port = broker.sockets[0].getsockname()[1]
        gateway = new_gateway(local=(lambda *_: {}) if alone else None)
        address = await gateway.start([] if alone else [Node(3, LOOPBACK, port)])
        for _ in range(20):  # while the loop cannot accept
            client = socket.create_connection(address)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        await until(lambda: gateway.connections_total == 20 and not gateway.clients)
        assert gateway.clients == set()
        await gateway.close(grace_s=1)


@in_loop
async def test_push_followed_by_invalid_bytes_is_flushed() -> None:
    flushed = asyncio.Event()
    gateway = new_gateway(flush=flushed.set, local=lambda *_: {})
    reader, writer = await asyncio.open_connection(*await gateway.start([]))
    writer.write(wire.request(wire.GET, bytes(15) + b"\x07\x00") + b"\xff\xff\xff\xff")
    await flushed.wait()
    assert await reader.read() == b""
    writer.close()
    await gateway.close(grace_s=1)


def partial_push(payload_bytes: int) -> bytes:
    """The request without its last byte."""
    push = struct.pack(">hhihs", 72, 0, 1, 1, b"a") + b"\x00" + bytes(16 + 6) + bytes(payload_bytes)
    return len(push).to_bytes(4, "big") + push[:-1]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 60) == b""
    except ConnectionResetError:
        return True


@in_loop
async def test_partial_pushes_stay_within_budget_and_block_nobody() -> None:
    gateway = new_gateway(local=lambda *_: {}, max_held_bytes=1_000_000)
    address = await gateway.start([])
    slow = []
    for number in range(50):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(partial_push(100_000))
        slow.append((reader, writer))
        while gateway.admission.held_bytes + 100_000 * gateway.admission.closed[Reason.HELD_BYTES] < 100_000 * number:
            assert gateway.admission.held_bytes <= 1_100_000
            await asyncio.sleep(0.001)
    assert await is_closed(slow[0][0])
    reader, writer = await asyncio.open_connection(*address)
    writer.write(partial_push(100_000))
    await asyncio.sleep(0.05)
    writer.write(b"\x00")
    assert await asyncio.wait_for(reader.readexactly(4), 60)
    for _, client in [*slow, (reader, writer)]:
        client.close()
    await gateway.close(grace_s=1)
    await until(lambda: not gateway.clients)
    assert gateway.admission.held_bytes == 0
    assert gateway.admission.closed[Reason.HELD_BYTES] >= 40


@in_loop
async def test_slow_request_is_closed() -> None:
    gateway = new_gateway(local=lambda *_: {}, frame_timeout_s=0.1)
    address = await gateway.start([])
    slow_reader, slow_writer = await asyncio.open_connection(*address)
    slow_writer.write(partial_push(10))
    assert await is_closed(slow_reader)
    assert +gateway.admission.closed == {Reason.FRAME_TIMEOUT: 1}
    await gateway.close(grace_s=1)


@in_loop
async def test_connections_above_the_limit_are_refused_until_one_closes() -> None:
    gateway = new_gateway(local=lambda *_: {}, max_connections=1)
    address = await gateway.start([])
    _, first = await asyncio.open_connection(*address)
    second, _ = await asyncio.open_connection(*address)
    assert await is_closed(second)
    assert len(gateway.clients) == 1
    first.close()
    await until(lambda: not gateway.clients)
    reader, third = await asyncio.open_connection(*address)
    third.write(partial_push(10) + b"\x00")
    assert await asyncio.wait_for(reader.readexactly(4), 60)
    third.close()
    await gateway.close(grace_s=1)
    assert gateway.admission.refused[Reason.TOO_MANY_CONNECTIONS] == 1


@in_loop
async def test_client_with_too_many_requests_in_flight_is_not_read_until_there_are_fewer() -> None:
    numbers = range(300)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unanswered = 0
        try:
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                unanswered += 1
                await asyncio.sleep(0 if unanswered % 7 else 0.001)
                writer.write(struct.pack(">i4sib", 9, request[4:8], 0, 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(slow, LOOPBACK, 0) as broker:
        gateway = new_gateway()
        gateway.options = replace(gateway.options, limits=ConnectionLimits(max_in_flight=4))
        address = await gateway.start([Node(3, LOOPBACK, broker.sockets[0].getsockname()[1])])
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"".join(struct.pack(">ihhihB", 11, 12, 4, number, 0, 0) for number in numbers))
        answered = [struct.unpack(">ii5x", await reader.readexactly(13))[1] for _ in numbers]
        writer.close()
        await gateway.close(grace_s=1)
    assert (answered, gateway.protocol_errors) == ([*numbers], 0)


def admission(**limits: int) -> Admission[str]:
    return Admission(AdmissionLimits(**limits))


def test_ipv6_is_limited_per_network_and_mapped_ipv4_per_address() -> None:
    some = admission(max_connections=9, max_connections_per_address=1)
    first = ["2001:db8::1", "2001:db8:0:1::1", "::ffff:10.0.0.1", "fe80::1%eth0"]
    assert [some.admit(address) for address in first] == [None] * 4
    again = ["2001:db8:0:0:ffff::2", "10.0.0.1"]
    assert [some.admit(address) for address in again] == [Reason.TOO_MANY_FROM_ADDRESS] * 2


def test_each_request_has_its_own_deadline() -> None:
    some = admission(frame_timeout_s=30)
    some.unfinished("pipelining", 1, 10, 0.0)
    some.unfinished("slow", 7, 10, 1.0)
    some.unfinished("pipelining", 2, 10, 20.0)
    some.unfinished("slow", 7, 20, 30.0)
    assert some.overdue(30.9) == []
    assert some.overdue(31.1) == [("slow", Reason.FRAME_TIMEOUT)]
    some.left("slow", "10.0.0.1")
    assert some.overdue(49.9) == []
    assert some.overdue(50.1) == [("pipelining", Reason.FRAME_TIMEOUT)]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3), st.integers(0, 60)), max_size=60))
def test_held_bytes_are_bounded_by_closing_the_oldest_unfinished_requests(steps: list[tuple[str, int, int]]) -> None:
    some, held = admission(max_held_bytes=100), dict[str, int]()
    begun: dict[str, tuple[int, int]] = {}  # number of the request, and when
    for now, (client, number, size) in enumerate(steps):
        if number:
            held[client] = size
            if begun.get(client, (0, 0))[0] != number:
                begun[client] = (number, now)
            for victim in some.unfinished(client, number, size, float(now)):
                assert victim == min(held, key=lambda name: begun[name][1])
                some.finished(victim)
                held.pop(victim)
                begun.pop(victim)
        else:
            some.finished(client)
            held.pop(client, None)
            begun.pop(client, None)
        assert some.held_bytes == sum(held.values()) <= 100


@in_loop
async def test_idle_connections_are_closed_later_when_waiting_for_a_broker() -> None:
    alone, behind = new_gateway(local=lambda *_: {}), new_gateway()
    address = await alone.start([])
    (quiet, _), (_, busy) = [await asyncio.open_connection(*address) for _ in range(2)]
    with socket.create_server((LOOPBACK, 0)) as broker:
        waiting, asking = await asyncio.open_connection(*await behind.start([Node(3, *broker.getsockname())]))
        asking.write(wire.request(3, bytes(4), version=1))
        upstream, _ = await asyncio.to_thread(broker.accept)
        await asyncio.to_thread(upstream.recv, 100)
        for _ in range(9):
            close_idle([*alone.clients, *behind.clients], most_quiet=8)
        busy.write(b"\0")
        await until(lambda: any(client.active for client in alone.clients))
        close_idle([*alone.clients, *behind.clients], most_quiet=8)
        assert await is_closed(quiet)
        for _ in range(15):
            close_idle(behind.clients, most_quiet=8)
        assert (len(alone.clients), len(behind.clients)) == (1, 1)
        close_idle(behind.clients, most_quiet=8)
        assert await is_closed(waiting)
        upstream.close()
    await asyncio.gather(alone.close(grace_s=0), behind.close(grace_s=0))
