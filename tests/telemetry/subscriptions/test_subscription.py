"""telemetry/subscriptions/subscription.py: ControllerConfigurationValidatorTest, and Kafka's own class."""

from __future__ import annotations

import random

import pytest
from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.subscription import DEFAULT_INTERVAL_MS, MATCH_KEYS, parse_subscription
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError

CODES = {"ConfigException": 40, "InvalidConfigurationException": 40, "InvalidRequestException": 42}
ELEMENTS = ["a", "org.apache.", "*", " b ", "", "é", " ", "\t", "\u3000", "client_id=a", "client_id=", "client_id=a="]
ELEMENTS += [
    "client_id==a",
    "=a",
    "client_id",
    "client_id=a=b",
    " client_id = a b ",
    "foo=b",
    "client_id=a{1",
    "=",
    "==",
]
INTERVALS = ["100", "99", "3600000", "3600001", "bbb", "", " 200 ", "+300", "-1", "2147483648", "0x10", "1e3", "٣٠٠"]


def refused(values: dict[str, str | None], name: str = "sub") -> tuple[int, str]:
    with pytest.raises(InvalidSubscriptionError) as error:
        parse_subscription(name, values)
    return int(error.value.code), str(error.value)


def test_valid_client_metrics_config() -> None:
    criteria = {
        "client_instance_id": "b69cc35a-7a54-4790-aa69-cc2bd4ee4538",
        "client_id": "1",
        "client_software_name": "apache-kafka-java",
        "client_software_version": "2.8.0-SNAPSHOT",
        "client_source_address": "127.0.0.1",
        "client_source_port": "1234",
    }
    assert set(criteria) == MATCH_KEYS
    subscription = parse_subscription(
        "sub",
        {
            "interval.ms": "2000",
            "metrics": "org.apache.kafka.producer.partition.queue.,org.apache.kafka.producer.partition.latency",
            "match": ",".join(f"{key}={value}" for key, value in criteria.items()),
        },
    )
    assert subscription.interval_ms == 2000
    assert len(subscription.metrics) == 2
    assert set(subscription.match) == MATCH_KEYS
    assert all(subscription.match[key].matches(value) for key, value in criteria.items())


def test_unset_keys_have_defaults() -> None:
    subscription = parse_subscription("sub", {})
    assert (subscription.metrics, subscription.interval_ms, subscription.match) == ((), DEFAULT_INTERVAL_MS, {})


def test_null_match() -> None:
    assert refused({"match": None}) == (40, "Null value not supported for client metrics configs: match")


def test_value_too_long() -> None:
    code, message = refused({"metrics": "x" * 32_768})
    assert code == 40
    assert message.endswith("exceeds the maximum value size of 32767 bytes.")
    assert parse_subscription("sub", {"metrics": "x" * 32_767}).metrics == ("x" * 32_767,)


def test_match_value_is_trimmed() -> None:
    for entry in (" client_id = a b ", "client_id=a b="):  # String.split drops what is empty at the end
        assert parse_subscription("sub", {"match": entry}).match["client_id"].matches("a b")


def test_last_entry_of_a_key_wins() -> None:
    match = parse_subscription("sub", {"match": "client_id=a,client_id=b"}).match
    assert [key for key in match if match[key].matches("b")] == ["client_id"]


def test_untranslatable_pattern_is_refused_with_reason() -> None:
    code, message = refused({"match": r"client_id=\p{L}"})
    assert code == ErrorCode.INVALID_CONFIG
    assert message.startswith(r"Illegal client matching pattern: client_id=\p{L}: cannot express")


@pytest.mark.java
def test_validation_matches_kafka(jvm: Jvm) -> None:
    rng = random.Random(5)
    configs = jvm.classes.org.apache.kafka.server.metrics.ClientMetricsConfigs
    for _ in range(600):
        values = {
            "metrics": rng.choice([",", ", ", " , "]).join(rng.choices(ELEMENTS[:11], k=rng.randint(0, 3))),
            "interval.ms": rng.choice(INTERVALS),
            "match": ",".join(rng.choices(ELEMENTS, k=rng.randint(0, 3))),
            "unknown": "1",
        }
        values = {key: value for key, value in values.items() if rng.random() < (0.1 if key == "unknown" else 0.6)}
        try:
            configs.validate("sub", jvm.properties(values))
            parsed = configs(jvm.properties(values))
            criteria = sorted(configs.parseMatchingPatterns(parsed.getList("match")).keySet())
            theirs: object = (list(parsed.getList("metrics")), parsed.getInt("interval.ms"), criteria)
        except Py4JJavaError as error:
            theirs = (CODES[error.java_exception.getClass().getSimpleName()], error.java_exception.getMessage())
        try:
            subscription = parse_subscription("sub", values)
            ours: object = (list(subscription.metrics), subscription.interval_ms, sorted(subscription.match))
        except InvalidSubscriptionError as invalid:
            ours = (int(invalid.code), str(invalid))
        assert ours == theirs, values
