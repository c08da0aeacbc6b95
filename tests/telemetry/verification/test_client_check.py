"""The check of KIP-714 clients: one that does all right passes each rule, each scripted fault breaks its own.

Then what producers are answered, by kio's schema of each version that they are offered.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.verification.client_check import TELEMETRY_MAX_BYTES, ClientCheck, Request
from telemetry.verification.findings import MAX_FRAME_SHOWN_BYTES, MEANINGS, KipRule, Outcome
from telemetry.verification.listener import PRODUCER_VERSIONS, answer_producer
from telemetry.wire.apis import INIT_PRODUCER_ID, PRODUCE, PUSH_TELEMETRY
from tests.kit.kio_entities import decode, encode, message_type, random_entity
from tests.telemetry.verification.scripted_client import ID, INTERVAL_MS, PATIENCE_MS, ScriptedClient

FAULTS = {
    "begins with an id of its own": {"first-get"},
    "forgets its id": {"instance-id"},
    "pushes at once": {"jitter"},
    "never jitters": {"jitter"},
    "pushes twice an interval": {"push-interval"},
    "makes up subscription ids": {"subscription-id"},
    "keeps to zstd": {"compression"},
    "sends damaged gzip": {"compression"},
    "sends JSON": {"payload"},
    "swaps the temporality": {"delta", "cumulative"},
    "sends deltas that overlap": {"delta"},
    "counts down": {"cumulative"},
    "pushes on after 117": {"unknown-subscription"},
    "sends what was not requested": {"requested-metrics"},
    "retries at once after 89": {"throttle"},
    "stops after 89": {"throttle"},
    "retries at once after 118": {"too-large"},
    "stops after 118": {"too-large"},
    "pushes although nothing is requested": {"no-metrics"},
    "takes a new id when it reconnects": {"reconnect", "instance-id"},
    "does not come back": {"reconnect"},
    "closes without a terminating push": {"terminating-push"},
    "pushes after the terminating push": {"terminating-push"},
    "truncates its pushes": {"readable", "jitter"},  # no push that can be read ever comes
}


def test_client_that_does_all_right_passes_each_rule() -> None:
    client = ScriptedClient()
    assert client.run() == []
    assert {verdict.outcome for verdict in client.check.verdicts} == {Outcome.PASS}
    assert [verdict.rule for verdict in client.check.verdicts] == list(KipRule) == list(MEANINGS)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_breaks_its_own_rule_and_no_other(fault: str) -> None:
    assert set(ScriptedClient(fault).run()) == FAULTS[fault]


def test_all_rules_have_a_fault() -> None:
    assert set().union(*FAULTS.values()) == set(KipRule)


def test_violation_names_the_frame_that_broke_the_rule() -> None:
    client = ScriptedClient("sends JSON")
    client.run()
    (verdict,) = [verdict for verdict in client.check.verdicts if verdict.rule is KipRule.PAYLOAD]
    assert verdict.frame.startswith(PUSH_TELEMETRY.to_bytes(2, "big"))
    assert verdict.frame_bytes == len(verdict.frame)


def test_frame_of_a_push_that_is_too_large_is_shown_in_part() -> None:
    client = ScriptedClient()
    client.check.opened(1)
    client.check.answer(Request(71, bytes(17), b"", 1, 0))
    size = TELEMETRY_MAX_BYTES + 1
    head = ID + (0x0714_0001).to_bytes(4, "big") + b"\0\0"
    body = head + bytes([size + 1 & 0x7F | 0x80, size + 1 >> 7 & 0x7F | 0x80, size + 1 >> 14]) + bytes(size) + b"\0"
    client.check.answer(Request(PUSH_TELEMETRY, body, body, 1, INTERVAL_MS))
    (verdict,) = [verdict for verdict in client.check.verdicts if verdict.rule is KipRule.TOO_LARGE]
    assert (len(verdict.frame), verdict.frame_bytes) == (MAX_FRAME_SHOWN_BYTES, len(body))


def test_client_that_never_comes_is_not_seen() -> None:
    check = ClientCheck(interval_ms=INTERVAL_MS, patience_ms=PATIENCE_MS, client_instance_id=ID)
    check.tick(10**9)
    assert not check.over
    assert {verdict.outcome for verdict in check.verdicts} == {Outcome.NOT_SEEN}


OFFERED = [(key, version) for key, (least, newest) in PRODUCER_VERSIONS.items() for version in range(least, newest + 1)]
NAMES = {PRODUCE: "produce", INIT_PRODUCER_ID: "init_producer_id"}


def request_of(key: int, version: int, seed: int) -> Any:
    return random_entity(random.Random(seed), message_type(NAMES[key], version, "request"))


@pytest.mark.parametrize("version", range(3, 13))
@given(seed=st.integers(0, 2**32))
def test_each_partition_is_acknowledged_unless_nobody_waits(version: int, seed: int) -> None:
    request = request_of(PRODUCE, version, seed)
    body = answer_producer(PRODUCE, version, encode(request))
    if not request.acks:
        assert body == b""
        return
    reported = decode(message_type("produce", version, "response"), body)
    assert [
        (topic.name, partition.index, partition.error_code.value)
        for topic in reported.responses
        for partition in topic.partition_responses
    ] == [(topic.name, partition.index, 0) for topic in request.topic_data for partition in topic.partition_data]


@pytest.mark.parametrize("version", range(5))
def test_a_producer_gets_an_id(version: int) -> None:
    body = answer_producer(INIT_PRODUCER_ID, version, encode(request_of(INIT_PRODUCER_ID, version, version)))
    reported = decode(message_type("init_producer_id", version, "response"), body)
    assert (reported.error_code.value, reported.producer_id, reported.producer_epoch) == (0, 1, 0)


@given(st.sampled_from(OFFERED), st.binary(max_size=80))
def test_random_bytes_raise_only_protocol_error(offered: tuple[int, int], body: bytes) -> None:
    try:
        answer_producer(*offered, body)
    except ProtocolError:
        return
