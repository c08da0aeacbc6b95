"""A gateway of two network processes in front of the shared broker: usage, subscriptions, listeners."""

import asyncio
import struct
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import pytest

from exporters.model import SampledTopics
from headroom.config.settings import ServeConfig
from headroom.config.sources import load
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin
from headroom.demo.processes import LOOPBACK
from headroom.server.listeners.kafka_listeners import open_network
from headroom.server.periodic import run_periodic_tasks
from headroom.server.processes.assembly import ClusterView, new_gateway, open_push_spool, telemetry_receiver
from quota_metrics.kafka.cluster import Node
from quota_metrics.measure.topic_meter import TopicCount
from telemetry.gateway.connection_limits import AddressGate
from telemetry.gateway.security.sasl_tokens import TokenOwners
from telemetry.gateway.server import Gateway
from telemetry.subscriptions.java.hash import uuid_text
from tests.kit.grpc_servers import in_loop
from tests.kit.network import NETWORK, spread, subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import Served, eventually, rows

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

PRODUCE, METADATA, API_VERSIONS = 0, 3, 18
_TOO_EARLY = 89  # the response to a second request at the same process
_INTERVAL_MS = 150  # shorter than the intervals of other tests' subscriptions
_NOTHING = struct.pack(">hhii", -1, 1, 1_000, 0)  # Produce 3: no transaction, acks=1, timeout, no topics
_HEAD_BYTES = struct.calcsize(">hhih") + len("raw")  # RawConnection's client id
_INSTANCE_ID = uuid.UUID("6b2a4f0c-7d35-4c1e-9f7a-51d2a90cde01").bytes


@pytest.fixture(scope="module")
def headroom(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("network"), "--processes", "2", "--upstream", kafka.bootstrap) as running:
        yield running


def listener_of(connection: RawConnection) -> int:
    """The port of the only broker in Metadata (1)."""
    body = connection.ask(METADATA, 1, struct.pack(">i", 0))
    _, _, length = struct.unpack_from(">iih", body)
    return int(struct.unpack_from(">i", body, 10 + length)[0])


def test_usage_of_all_processes_adds_up(headroom: Served) -> None:
    sent = 0
    with spread(headroom, 10) as connections:
        for _ in range(50):
            for connection in connections:
                connection.ask(PRODUCE, 3, _NOTHING)
                sent += _HEAD_BYTES + len(_NOTHING)
    query = "SELECT sum(bytes) FROM headroom.quota_usage WHERE client_id = 'raw' AND quota_key = 'producer_byte_rate'"
    eventually(lambda: rows(headroom.sql, query), lambda found: found == [(sent,)])
    assert headroom.metrics()["headroom_usage_left_out_total"] == 0


def test_all_processes_share_listeners_and_subscriptions(headroom: Served, kafka_admin: Admin) -> None:
    def reported() -> set[tuple[int, int]]:
        """Subscription id and interval of one client instance at each process."""
        with spread(headroom, 2) as connections:
            assert len({listener_of(connection) for connection in connections}) == 1
            answers = [subscription(connection, _INSTANCE_ID) for connection in connections]
            return {answer[2:] for answer in answers if answer[0] != _TOO_EARLY}

    mine = f"client_instance_id={uuid_text(_INSTANCE_ID)}"
    kafka_admin.set_subscription("network", "*", _INTERVAL_MS, mine)
    [before] = eventually(reported, lambda found: {interval for _, interval in found} == {_INTERVAL_MS})
    [victim] = headroom.children(NETWORK)
    restarts = headroom.metrics()["headroom_network_restarts_total"]
    victim.kill()
    eventually(headroom.metrics, lambda found: found["headroom_network_restarts_total"] == restarts + 1)
    eventually(headroom.ready, lambda answer: answer[0] == 200)
    assert reported() == {before}


def two_processes(kafka: LocalCluster, data: Path, **settings: object) -> ServeConfig:
    listen = f"{LOOPBACK}:0"
    return load(None, {"processes": 2, "upstream": kafka.bootstrap, "listen": listen, "data": data, **settings})


@in_loop
async def test_unknown_broker_is_requested_and_gets_a_shared_listener(kafka: LocalCluster, tmp_path: Path) -> None:
    config = two_processes(kafka, tmp_path)
    async with AsyncExitStack() as stack:
        spool = open_push_spool(config, "pushes", stack)
        host, port = config.upstream[0].host, config.upstream[0].port
        placeholder = Node(99, host, port)  # same address; the real broker has another node id
        receiver = telemetry_receiver(config, spool)

        def update() -> None:
            gateway.ports.update([placeholder, Node(1, host, port)])

        view = ClusterView(AddressGate(), TokenOwners(), update)
        gateway = new_gateway(config, "test", receiver, spool, view=view)
        address, network = await open_network(config, gateway, [placeholder], stack)
        assert address is not None
        asked = asyncio.to_thread(asked_of_the_child, gateway, address.port)
        stop = asyncio.Event()
        telling = asyncio.create_task(run_periodic_tasks([network.task()], stop, network.watch(), Counter()))
        first, then = await asked
        stop.set()
        await telling
        assert first == address.port
        assert {port for node, port in gateway.ports if node.id != 99} == {then}


@in_loop
async def test_topics_that_a_child_reads_are_reported_to_its_parent(kafka: LocalCluster, tmp_path: Path) -> None:
    own: list[SampledTopics] = []
    reported: list[TopicCount] = []
    topic = struct.pack(">ih", 1, 6) + b"orders" + struct.pack(">iii", 1, 0, 5) + bytes(5)  # no batch of records
    config = two_processes(kafka, tmp_path, quotas={"topics": {"sample": 1.0}})
    async with AsyncExitStack() as stack:
        spool = open_push_spool(config, "pushes", stack)
        receiver = telemetry_receiver(config, spool)
        gateway = new_gateway(config, "test", receiver, spool, topics=own.append)
        node = Node(1, config.upstream[0].host, config.upstream[0].port)
        address, _ = await open_network(config, gateway, [node], stack, topics=reported.append)
        assert address is not None
        await asyncio.to_thread(produced_by_the_child, gateway, address.port, _NOTHING[:-4] + topic)
    assert reported == [TopicCount("in", "ANONYMOUS", "raw", "orders", LOOPBACK, 5, 1)]
    assert {one.payer for one in own} <= {LOOPBACK}  # of connections that this process accepted


def produced_by_the_child(gateway: Gateway, port: int, body: bytes) -> None:
    with of_the_child(gateway, port) as connection:
        connection.ask(PRODUCE, 3, body)


@contextmanager
def of_the_child(gateway: Gateway, port: int) -> Iterator[RawConnection]:
    """A connection that the other process accepted."""
    with ExitStack() as stack:
        while True:
            ours = gateway.connections_total
            connection = stack.enter_context(RawConnection(f"{LOOPBACK}:{port}"))
            connection.ask(API_VERSIONS, 0, b"")
            if gateway.connections_total == ours:
                yield connection
                return


def asked_of_the_child(gateway: Gateway, port: int) -> tuple[int, int]:
    """A child announces a listener for a new broker, and again when it knows the broker's address."""
    with of_the_child(gateway, port) as connection:
        first = listener_of(connection)
        return first, eventually(lambda: listener_of(connection), lambda found: found != first)
