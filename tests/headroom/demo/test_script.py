"""The clients of the demo."""

from __future__ import annotations

from exporters.model import ANONYMOUS
from headroom.demo.script import CLIENTS, MISLEADING, TOPICS, quotas


def test_the_names_are_those_that_were_promised() -> None:
    names = {client.client_id for client in CLIENTS}
    assert len(names) == 16
    assert {"java-producer-idle", "java-consumer-throttled", "librdkafka-producer-free"} <= names
    assert {client.topic for client in CLIENTS} == set(TOPICS)


def test_free_clients_have_no_quota_and_nothing_is_a_default() -> None:
    for entity, _ in quotas():
        assert None not in entity.values()
        assert not str(entity["client-id"]).endswith("-free")


def test_a_misleading_quota_loses_against_one_on_user_and_client() -> None:
    by_entity = {tuple(sorted(entity.items())): values for entity, values in quotas()}
    for client in CLIENTS:
        if client.client_id in MISLEADING:
            loses = by_entity[("client-id", client.client_id),]
            wins = by_entity[("client-id", client.client_id), ("user", ANONYMOUS)]
            assert loses == {client.quota_key: MISLEADING[client.client_id]}
            assert wins == {client.quota_key: client.limit}
    assert len(MISLEADING) == 2


def test_a_throttled_consumer_is_offered_more_than_it_may_take() -> None:
    for client in CLIENTS:
        script = client.script
        if client.habit == "throttled":
            assert script.consumer_limit is not None
            assert script.producer_limit is not None
            assert script.consumer_limit < script.rate < script.producer_limit
