"""A cluster that is not Apache's: librdkafka's mock brokers have neither configurations nor quotas, and odd answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.serving import PATIENCE_S, Served, eventually, rows

COUNT = 200
USAGE = "SELECT count() FROM headroom.quota_usage WHERE client_id = 'app' AND rate > 0"
WARNINGS = (
    "configuration of broker 1 cannot be read",
    "ACLs with hosts cannot be read",
    "the cluster has no quotas that can be read: limits and levels are unknown",
)


@pytest.mark.clickhouse
def test_clients_pass_and_what_is_unknown_is_named_once(mock_brokers: str, tmp_path: Path) -> None:
    with Served(tmp_path, "--upstream", mock_brokers) as served:
        producer = Producer({"bootstrap.servers": served.kafka, "client.id": "app", "log_level": 0})
        for _ in range(COUNT):
            producer.produce("orders", b"x" * 100)
        assert producer.flush(PATIENCE_S) == 0
        group = {"group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": served.kafka, **group})
        consumer.subscribe(["orders"])
        assert len(consumer.consume(COUNT, timeout=PATIENCE_S)) == COUNT
        consumer.close()
        eventually(lambda: rows(served.sql, USAGE), lambda counted: counted != [(0,)])
        eventually(lambda: served.ready()[0], lambda status: status == 200)
        del producer
    entries = [json.loads(line) for line in served.log.read_text().splitlines() if line.startswith("{")]
    warnings = [entry.get("fact") or entry["event"] for entry in entries if entry["level"] == "warning"]
    assert len(warnings) == len(set(warnings))
    assert [sum(text in warning for warning in warnings) for text in WARNINGS] == [1, 1, 1]
    assert [entry for entry in entries if entry["level"] == "error"] == []
