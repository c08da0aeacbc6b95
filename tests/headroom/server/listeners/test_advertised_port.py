"""Clients that see other ports than ours, as behind `docker -p`, a NodePort or a load balancer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headroom.demo.processes import LOOPBACK
from tests.kit.free_ports import free_range
from tests.kit.serving import PATIENCE_S, Served

COUNT = 5  # bootstrap, a broker 0 that there is not, and 1 to 3


@contextmanager
def relays(outside: int, inside: int, count: int) -> Iterator[dict[int, int]]:
    """Ports from `outside` on lead to those from `inside` on; how many connections each took."""
    taken = dict.fromkeys(range(outside, outside + count), 0)
    ended = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        taken[port] += 1
        try:
            there = await asyncio.open_connection(LOOPBACK, port - outside + inside)
        except ConnectionRefusedError:  # nothing listens there any more
            writer.close()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)

    async def run() -> None:
        servers = [await asyncio.start_server(relay, LOOPBACK, port) for port in taken]
        await ended.wait()
        for server in servers:
            server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        yield taken
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@pytest.mark.clickhouse
def test_clients_reach_each_broker_by_the_ports_that_they_see(mock_brokers: str, tmp_path: Path) -> None:
    inside = free_range(2 * COUNT)
    outside = inside + COUNT
    config = tmp_path / "headroom.yaml"
    config.write_text(f"gateway: {{advertised_host: localhost, advertised_port: {outside}}}\n")
    listen = ("--listen", f"{LOOPBACK}:{inside}", "--config", str(config), "--processes", "2")
    with (
        relays(outside, inside, COUNT) as taken,
        Served(tmp_path, "--upstream", mock_brokers, *listen) as served,
    ):
        assert served.kafka == f"{LOOPBACK}:{inside}"
        producer = Producer(
            {"bootstrap.servers": f"localhost:{outside}", "broker.address.family": "v4", "log_level": 0}
        )
        metadata = producer.list_topics("orders", timeout=PATIENCE_S)
        assert {broker.id: (broker.host, broker.port) for broker in metadata.brokers.values()} == {
            node: ("localhost", outside + 1 + node) for node in (1, 2, 3)
        }
        leaders = {partition.leader for partition in metadata.topics["orders"].partitions.values()}
        for partition in metadata.topics["orders"].partitions:
            producer.produce("orders", b"value", partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        assert taken[outside] > 0
        assert all(taken[outside + 1 + leader] for leader in leaders)
        del producer
