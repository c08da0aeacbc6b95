"""A cluster that is not Apache's: librdkafka's mock brokers have neither configurations nor quotas, and odd answers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.serving import PATIENCE_S, Served, eventually

COUNT = 200


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

        def usage() -> str:
            query = b"SELECT count() > 0 FROM headroom.quota_usage WHERE client_id = 'app' AND rate > 0"
            with urllib.request.urlopen(f"http://{served.sql}/", query, timeout=30) as answer:
                return str(answer.read().decode().strip())

        assert eventually(usage, lambda found: found in ("1", "true"))
        del producer
    entries = [json.loads(line) for line in served.log.read_text().splitlines() if line.startswith("{")]
    warnings = [entry.get("fact") or entry["event"] for entry in entries if entry["level"] == "warning"]
    assert len(warnings) == len(set(warnings))
    assert "the cluster has no quotas that can be read: limits and levels are unknown" in warnings
    assert [entry for entry in entries if entry["level"] == "error"] == []
