"""`headroom serve` whose cluster does not answer at the start lives, says why it is not ready, and serves later."""

import json
import os
import signal
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headroom.demo.broker import LocalCluster
from headroom.demo.processes import LOOPBACK, first_line, free_ports, start, stop
from tests.kit.free_ports import nothing, silent
from tests.kit.serving import PATIENCE_S, Served, eventually, status_and_text
from tests.kit.terminal.fake_serve import FakeServe

pytestmark = pytest.mark.clickhouse


@contextmanager
def unknown_name() -> Iterator[str]:
    yield "broker.invalid:9092"


@contextmanager
def not_kafka() -> Iterator[str]:
    with FakeServe({}) as server:
        yield server.http


def get(url: str) -> tuple[int, str]:
    """Status and text; 0 while nobody listens."""
    try:
        return status_and_text(url)
    except urllib.error.URLError:
        return 0, ""


@contextmanager
def starting(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """The process, its HTTP address and its log."""
    http, served = f"{LOOPBACK}:{free_ports(1)[0]}", Served(directory, *arguments)
    with served.log.open("wb") as log:
        process = start([*served.argv, "--http", http], stderr=log, stdout=subprocess.PIPE)
    try:
        eventually(lambda: get(f"http://{http}/healthz"), lambda answer: answer == (200, "ok\n"))
        yield process, f"http://{http}", served.log
    finally:
        stop(process, PATIENCE_S)


@pytest.mark.parametrize(
    "peer", [nothing, *(pytest.param(peer, marks=pytest.mark.release) for peer in (unknown_name, silent, not_kafka))]
)
def test_cluster_that_does_not_answer_ends_nothing(
    tmp_path: Path, peer: Callable[[], AbstractContextManager[str]]
) -> None:
    with peer() as address, starting(tmp_path, "--upstream", address) as (process, url, log):
        said = "has not answered yet" if peer is silent else "cannot reach the cluster at "
        eventually(lambda: get(f"{url}/readyz"), lambda answer: said in answer[1])
        for path in ("/readyz", "/readyz/kafka", "/metrics", "/"):
            status, text = get(url + path)
            assert status == 503, path
            assert said in text
            assert address in text
        assert said in json.loads(get(f"{url}/api/v1/status")[1])["error"]
        assert get(f"{url}/healthz") == (200, "ok\n")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert log.read_text().count("no Kafka client is served") == (0 if peer is silent else 1)


@pytest.mark.kafka
def test_clients_are_served_when_the_brokers_are_there(tmp_path: Path, java: str, kafka_libs: Path) -> None:
    brokers = LocalCluster(java, kafka_libs)
    with ExitStack() as stack:
        stack.callback(brokers.stop)
        process, url, log = stack.enter_context(starting(tmp_path, "--upstream", brokers.bootstrap))
        eventually(lambda: get(f"{url}/readyz/kafka"), lambda answer: "Connection refused" in answer[1])
        brokers.start()
        ready = first_line(process, PATIENCE_S)
        assert get(f"{url}/readyz/kafka") == (200, "ready\n")
        kafka = ready.split("kafka=")[1].split()[0]
        admin = AdminClient({"bootstrap.servers": kafka})
        assert list(admin.list_topics(timeout=PATIENCE_S).brokers) == [1]
        assert "the cluster answers" in log.read_text()
