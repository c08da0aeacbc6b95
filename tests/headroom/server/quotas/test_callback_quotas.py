"""Brokers whose limits a class decides (client.quota.callback.class), not the rules: the verdict says so."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.quota_callback import CLASS, LIMIT, LIMIT_CONFIG, libs_with_callback
from tests.kit.serving import Served, eventually, levels_by_client, output_of, page, running

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.slow]

CLUSTER = "callback"
RULE = 5_000_000.0


class Client(NamedTuple):
    """What it sends at once, and how long it waits then."""

    client_id: str
    limit: float
    burst_s: float  # seconds of the limit
    pause_s: float
    record_bytes: int


CLIENTS = [
    Client("orders", LIMIT, 0.3, 0.1, 10_000),
    Client("limit-50000-steady", 50e3, 0.5, 0.2, 5_000),
    Client("limit-50000-bursty", 50e3, 14.0, 15.0, 20_000),
    Client("limit-5000000-bursty", 5e6, 13.0, 15.0, 500_000),
    Client("limit-50000000-steady", 50e6, 0.4, 0.1, 900_000),
]


@pytest.fixture
def served(
    java: str, kafka_libs: Path, jvm: Jvm, clickhouse: RunningClickHouse, tmp_path: Path
) -> Iterator[tuple[LocalCluster, Served]]:
    libs = libs_with_callback(java, kafka_libs, tmp_path / "callback")
    properties = {"client.quota.callback.class": CLASS, LIMIT_CONFIG: str(LIMIT)}
    with ExitStack() as stack:
        kafka = stack.enter_context(LocalCluster(java, libs, properties=properties))
        with Admin(jvm, kafka.bootstrap) as admin:
            admin.create_topics([client.client_id for client in CLIENTS])
            admin.alter_quota({"client-id": None}, {"producer_byte_rate": RULE})
        arguments = ["--upstream", kafka.bootstrap, "--cluster", CLUSTER]
        yield kafka, stack.enter_context(Served(tmp_path, *arguments, environment=clickhouse.environment))


@pytest.fixture
def python_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the class in what starts afterwards."""
    monkeypatch.setenv("HEADROOM_QUOTAS__CALLBACK", "tests.kit.quota_callback:fixed_quotas")


def load(bootstrap: str, client: Client, done: threading.Event) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client.client_id,
            "linger.ms": 0,
            "batch.num.messages": 4,
            "compression.type": "none",
            "queue.buffering.max.kbytes": 200_000,
            "message.timeout.ms": 600_000,
        }
    )
    records = max(int(client.burst_s * client.limit / client.record_bytes), 1)
    value = os.urandom(client.record_bytes)
    while not done.is_set():
        for _ in range(records):
            if len(producer) * client.record_bytes < 3 * client.limit * max(client.burst_s, 1.0):
                producer.produce(client.client_id, value)
            producer.poll(0)
        done.wait(client.pause_s)
    producer.purge()


def test_verdict_names_class_and_implied_limit(served: tuple[LocalCluster, Served]) -> None:
    kafka, headroom = served
    with running(*(partial(load, headroom.kafka, client) for client in CLIENTS)):
        found = eventually(
            lambda: levels_by_client(headroom.http, CLUSTER),
            lambda rows: all(rows.get(client.client_id, {}).get("implied_limit") for client in CLIENTS),
        )
    for client in CLIENTS:
        row = found[client.client_id]
        assert (row["level"], row["limit"], row["utilization"]) == ("throttled", None, None), row
        assert row["implied_limit"] == pytest.approx(client.limit, rel=0.1), row
        assert (
            f"not explained by producer_byte_rate 5.0 MB/s of client-id=<default>; the brokers use {CLASS}"
            in row["reason"]
        )
    overview = page(headroom.http, f"/?cluster={CLUSTER}")
    assert CLASS in overview
    assert "implied " in overview
    resolve = ["quotas", "resolve", "--bootstrap-server", kafka.bootstrap, "--client-id", "orders", "--output", "json"]
    (resolved,) = json.loads(output_of(*resolve, "--user", "ANONYMOUS", within_s=120))
    assert resolved["callback_classes"] == [CLASS]
    assert "implied" in output_of("top", "--http", headroom.http, "--once", "--cluster", CLUSTER, within_s=120)


def test_limits_of_the_python_function_are_those_that_the_class_enforces(
    python_function: None, served: tuple[LocalCluster, Served]
) -> None:
    _, headroom = served
    clients = CLIENTS[:2]

    def all_full() -> bool:
        rows = levels_by_client(headroom.http, CLUSTER)
        return all((rows.get(client.client_id, {}).get("utilization") or 0) > 0.9 for client in clients)

    with running(*(partial(load, headroom.kafka, client) for client in clients)):
        eventually(all_full, bool)
        verdict_rows = levels_by_client(headroom.http, CLUSTER)
    for client in clients:
        row = verdict_rows[client.client_id]
        assert (row["level"], row["limit"]) == ("throttled", client.limit), row
        assert row["utilization"] == pytest.approx(1.0, rel=0.1), row
