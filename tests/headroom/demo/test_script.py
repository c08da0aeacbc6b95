"""The clients of the demo."""

from __future__ import annotations

from headroom.demo.script import CLIENTS, TOPICS


def test_clients_have_the_documented_names() -> None:
    names = {client.client_id for client in CLIENTS}
    assert len(names) == 16
    assert {"java-producer-idle", "java-consumer-throttled", "librdkafka-producer-free"} <= names
    assert {client.topic for client in CLIENTS} == set(TOPICS)
