"""A gateway whose store is away, from its start and for longer than `store.stalled_ms`, says so at /readyz and stays in
service for Kafka's clients, new ones and after a restart. What it acknowledged is stored later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from confluent_kafka import KafkaError, Message, Producer

from exporters.clickhouse.connection import WRITER
from exporters.clickhouse.managed.access import writer_password
from headroom.demo.broker import LocalCluster
from headroom.demo.processes import LOOPBACK, free_ports
from tests.headroom.server.processes.pushes import push
from tests.kit.clickhouse import running_clickhouse
from tests.kit.serving import PATIENCE_S, Served, eventually, rows

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]

IN_SERVICE = (200, "ready\n")


class Failing(BaseHTTPRequestHandler):
    """Answers every statement with an error of the server."""

    status, exception = 500, 241  # MEMORY_LIMIT_EXCEEDED

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("X-ClickHouse-Exception-Code", str(self.exception))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Refusing(Failing):
    status, exception = 403, 516  # AUTHENTICATION_FAILED


@contextmanager
def nothing() -> Iterator[int]:
    yield free_ports(1)[0]


@contextmanager
def silent() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        yield listener.getsockname()[1]


@contextmanager
def answering(handler: type[Failing]) -> Iterator[int]:
    with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


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


def settings(directory: Path) -> Path:
    file = directory / "headroom.yaml"
    (directory / "subscriptions.yaml").write_text("all: {metrics: '*', interval.ms: 100}\n")
    password = directory / "server" / "writer.password"
    password.parent.mkdir()
    writer_password(password)
    file.write_text(
        f"subscriptions: {directory / 'subscriptions.yaml'}\nclickhouse_password_file: {password}\n"
        "store: {stalled_ms: 1000}\n"
    )
    return file


@pytest.mark.parametrize(
    "store",
    [nothing, silent, lambda: answering(Failing), lambda: answering(Refusing)],
    ids=["nothing listens", "silent", "fails", "refuses the password"],
)
def test_gateway_stays_in_service_without_a_store(
    tmp_path: Path, kafka: LocalCluster, new_topic: Callable[[], str], store: Callable[[], AbstractContextManager[int]]
) -> None:
    topic, file = new_topic(), settings(tmp_path)
    with store() as port:
        arguments = ["--upstream", kafka.bootstrap, "--clickhouse", f"http://{WRITER}@{LOOPBACK}:{port}/headroom"]
        for start in (1, 2):  # as a pod that restarts in that time
            with Served(tmp_path, *arguments, "--config", str(file)) as headroom:
                assert headroom.serves_kafka() == IN_SERVICE
                assert asyncio.run(push(headroom.address, start)) == 0
                assert delivered(headroom.kafka, topic) is None
                eventually(headroom.ready, lambda answer: answer[0] == 503)
                assert headroom.serves_kafka() == IN_SERVICE
                assert delivered(headroom.kafka, topic) is None


def test_gateway_stays_in_service_when_its_store_goes_and_loses_nothing(
    tmp_path: Path, kafka: LocalCluster, new_topic: Callable[[], str]
) -> None:
    topic, file, [port] = new_topic(), settings(tmp_path), free_ports(1)
    arguments = ["--upstream", kafka.bootstrap, "--clickhouse", f"http://{WRITER}@{LOOPBACK}:{port}/headroom"]
    with Served(tmp_path, *arguments, "--config", str(file)) as headroom:
        with running_clickhouse(tmp_path / "server", http_port=port):
            eventually(headroom.ready, lambda answer: answer == IN_SERVICE)
            assert asyncio.run(push(headroom.address, 1)) == 0
        assert asyncio.run(push(headroom.address, 2)) == 0
        eventually(headroom.ready, lambda answer: "nothing was written" in answer[1])
        assert headroom.serves_kafka() == IN_SERVICE
        assert delivered(headroom.kafka, topic) is None
    with Served(tmp_path, *arguments, "--config", str(file)) as headroom:
        assert headroom.serves_kafka() == IN_SERVICE
        assert asyncio.run(push(headroom.address, 3)) == 0
        assert delivered(headroom.kafka, topic) is None
        with running_clickhouse(tmp_path / "server", http_port=port):
            query = "SELECT value FROM headroom.points ORDER BY value"
            eventually(lambda: rows(f"{LOOPBACK}:{port}", query), lambda stored: stored == [(1,), (2,), (3,)])
