"""The clients of the demo."""

from __future__ import annotations

from exporters.model import ANONYMOUS
from headroom.demo.script import CLIENTS, MISLEADING, TOPICS, quotas


def test_clients_have_the_documented_names() -> None:
    names = {client.client_id for client in CLIENTS}
    assert len(names) == 16
    assert {"java-producer-idle", "java-consumer-throttled", "librdkafka-producer-free"} <= names
    assert {client.topic for client in CLIENTS} == set(TOPICS)


def test_misleading_quota_is_overridden_by_user_and_client_quota() -> None:
    by_entity = {tuple(sorted(entity.items())): values for entity, values in quotas()}
    for client in CLIENTS:
        if client.client_id in MISLEADING:
            loses = by_entity[("client-id", client.client_id),]
            wins = by_entity[("client-id", client.client_id), ("user", ANONYMOUS)]
            assert loses == {client.quota_key: MISLEADING[client.client_id]}
            assert wins == {client.quota_key: client.limit}
    assert len(MISLEADING) == 2
