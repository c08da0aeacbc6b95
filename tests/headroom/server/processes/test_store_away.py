"""`headroom serve --clickhouse` while the server is away or refuses: it accepts pushes and writes them later, says so
at /readyz, and stays in service for Kafka's clients."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from exporters.clickhouse.connection import WRITER
from exporters.clickhouse.managed.access import writer_password
from headroom.demo.broker import LocalCluster
from headroom.demo.processes import LOOPBACK, free_ports
from tests.headroom.server.processes.pushes import push
from tests.kit.clickhouse import RunningClickHouse, connected, running_clickhouse
from tests.kit.fake_clickhouse import fake_clickhouse, http
from tests.kit.free_ports import nothing, silent
from tests.kit.network import NETWORK
from tests.kit.serving import PATIENCE_S, Served, config_file, eventually, rows

pytestmark = pytest.mark.clickhouse

IN_SERVICE = (200, "ready\n")
SLOW_INSTANCES = """
CREATE VIEW headroom.client_instances_now AS
SELECT l.* FROM headroom.quick_client_instances_now AS l
CROSS JOIN (SELECT sleepEachRow(1) AS slept FROM numbers(120) SETTINGS max_block_size = 1) AS s
WHERE s.slept = 0
"""
USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, source, interval_ms)
SELECT 'c', 'producer_byte_rate', now() - 300 + number, 'u', 'a', 1, 'gateway', 1000 FROM numbers(600)
"""
COMPUTING = """
SELECT count() > 0 FROM system.processes
WHERE query LIKE '%client_instances_now%' AND query NOT LIKE '%system.processes%'
"""
REFUSAL = b"Code: 516. DB::Exception: default: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"
TOO_MUCH = b"Code: 241. DB::Exception: Memory limit (total) exceeded. (MEMORY_LIMIT_EXCEEDED)"


@contextmanager
def answering(response: bytes, version: str = "") -> Iterator[str]:
    with fake_clickhouse(response, version) as fake:
        yield fake.url.removeprefix("http://")


@contextmanager
def frozen_while_it_computes_a_minute(clickhouse: RunningClickHouse) -> Iterator[None]:
    """The server stops (SIGSTOP) in a statement that a minute needs; rows of the last minutes are its cause."""
    process = clickhouse.server.process
    assert process is not None
    client = connected(clickhouse.writer)
    client.command("RENAME TABLE headroom.client_instances_now TO headroom.quick_client_instances_now")
    client.command(SLOW_INSTANCES)
    client.command(USAGE)
    eventually(lambda: client.query(COMPUTING).result_rows, lambda found: found == [(1,)])
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def delivered(bootstrap: str, topic: str) -> KafkaError | None:
    """Sends a record as a new client, and returns why it could not."""
    outcome: list[KafkaError | None] = []

    def done(error: KafkaError | None, _: Message) -> None:
        outcome.append(error)

    limits = {"message.timeout.ms": int(PATIENCE_S * 1000), "enable.metrics.push": False}
    producer = Producer({"bootstrap.servers": bootstrap, **limits})
    producer.produce(topic, b"x", on_delivery=done)
    producer.flush(PATIENCE_S)
    [error] = outcome
    return error


def settings(directory: Path, stalled_ms: int = 1_000) -> list[str]:
    password = directory / "server" / "writer.password"
    password.parent.mkdir()
    writer_password(password)
    store = {"stalled_ms": stalled_ms}
    return config_file(directory, push_ms=100, clickhouse_password_file=str(password), store=store)


@pytest.mark.release
def test_pushes_before_the_server_starts_are_written_later_and_its_freeze_delays_no_stop(tmp_path: Path) -> None:
    [port] = free_ports(1)
    config, server = settings(tmp_path, stalled_ms=60_000), f"http://{WRITER}@{LOOPBACK}:{port}/headroom"
    began = time.monotonic()
    with Served(tmp_path, "--clickhouse", server, *config) as headroom:
        assert headroom.ready()[0] == 503
        eventually(headroom.ready, lambda answer: "Connection refused" in answer[1])
        asyncio.run(push(headroom.address, 7))
        assert headroom.metrics()["headroom_store_up"] == 0
        assert headroom.children(NETWORK) == []  # by default one process accepts clients
        with running_clickhouse(tmp_path / "server", http_port=port) as clickhouse:
            eventually(headroom.ready, lambda answer: answer == (200, "ready\n"))
            query = "SELECT value FROM headroom.points"
            eventually(lambda: rows(f"{LOOPBACK}:{port}", query), lambda stored: stored == [(7,)])
            with frozen_while_it_computes_a_minute(clickhouse):
                assert headroom.stop() == 0
    lines = headroom.log.read_text().splitlines()
    assert all(line.startswith("{") for line in lines), "a library spoke"
    assert 1 <= sum("does not accept rows" in line for line in lines) <= 2 + (time.monotonic() - began) // 60


def test_sql_address_in_use_is_a_one_line_error(tmp_path: Path) -> None:
    with silent() as address, pytest.raises(RuntimeError) as failed:
        Served(tmp_path, "--sql", address).__enter__()
    said = f"headroom: --sql: cannot listen on {address}: Address already in use"
    assert str(failed.value) == f"headroom serve did not start: {said}"


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("store", "why"),
    [
        pytest.param(nothing, "Connection refused", id="nothing listens"),
        pytest.param(silent, "the store does not answer", id="silent", marks=pytest.mark.release),
        pytest.param(lambda: answering(http(TOO_MUCH, "500 Internal Server Error")), "MEMORY_LIMIT", id="fails"),
        pytest.param(
            lambda: answering(http(REFUSAL, "403 Forbidden")),
            "refuses user",
            id="refuses the password",
            marks=pytest.mark.release,
        ),
        pytest.param(
            lambda: answering(http(b""), "24.8.14.39"),
            "ClickHouse 24.8.14.39 is too old: Headroom needs 25.8 or newer\n",
            id="outdated",
        ),
    ],
)
def test_gateway_stays_in_service_without_a_store(
    tmp_path: Path,
    kafka: LocalCluster,
    new_topic: Callable[[], str],
    store: Callable[[], AbstractContextManager[str]],
    why: str,
) -> None:
    topic, config = new_topic(), settings(tmp_path)
    with store() as address:
        arguments = ["--upstream", kafka.bootstrap, "--clickhouse", f"http://{WRITER}@{address}/headroom"]
        for start in (1, 2):  # as a pod that restarts in that time
            with Served(tmp_path, *arguments, *config) as headroom:
                assert headroom.serves_kafka() == IN_SERVICE
                asyncio.run(push(headroom.address, start))
                assert delivered(headroom.kafka, topic) is None
                eventually(headroom.ready, lambda answer: answer[0] == 503 and why in answer[1])
                assert headroom.serves_kafka() == IN_SERVICE
                assert delivered(headroom.kafka, topic) is None
                assert headroom.stop() == 0


@pytest.mark.kafka
def test_gateway_stays_in_service_when_its_store_goes_and_loses_nothing(
    tmp_path: Path, kafka: LocalCluster, new_topic: Callable[[], str]
) -> None:
    topic, config, [port] = new_topic(), settings(tmp_path), free_ports(1)
    arguments = ["--upstream", kafka.bootstrap, "--clickhouse", f"http://{WRITER}@{LOOPBACK}:{port}/headroom"]
    with Served(tmp_path, *arguments, *config) as headroom:
        with running_clickhouse(tmp_path / "server", http_port=port):
            eventually(headroom.ready, lambda answer: answer == IN_SERVICE)
            asyncio.run(push(headroom.address, 1))
        asyncio.run(push(headroom.address, 2))
        eventually(headroom.ready, lambda answer: "nothing was written" in answer[1])
        assert headroom.serves_kafka() == IN_SERVICE
        assert delivered(headroom.kafka, topic) is None
    with Served(tmp_path, *arguments, *config) as headroom:
        assert headroom.serves_kafka() == IN_SERVICE
        asyncio.run(push(headroom.address, 3))
        assert delivered(headroom.kafka, topic) is None
        with running_clickhouse(tmp_path / "server", http_port=port):
            query = "SELECT value FROM headroom.points ORDER BY value"
            eventually(lambda: rows(f"{LOOPBACK}:{port}", query), lambda stored: stored == [(1,), (2,), (3,)])
