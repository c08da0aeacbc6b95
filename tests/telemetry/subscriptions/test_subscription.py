"""Subscriptions: Kafka's validator test and Kafka's own class, then files: read, refused as a whole, written."""

import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription import DEFAULT_INTERVAL_MS, EXTRA_MATCH_KEYS, MATCH_KEYS, parse_subscription
from telemetry.subscriptions.subscription_file import SubscriptionFile, SubscriptionFileError, dump, parse
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


def test_null_and_too_long_values_are_refused() -> None:
    assert refused({"match": None}) == (40, "Null value not supported for client metrics configs: match")
    code, message = refused({"metrics": "x" * 32_768})
    assert code == 40
    assert message.endswith("exceeds the maximum value size of 32767 bytes.")
    assert parse_subscription("sub", {"metrics": "x" * 32_767}).metrics == ("x" * 32_767,)


def test_match_value_is_trimmed_and_the_last_of_a_key_wins() -> None:
    # String.split drops what is empty at the end.
    for criteria in (" client_id = a b ", "client_id=a b=", "client_id=a,client_id=a b"):
        match = parse_subscription("sub", {"match": criteria}).match
        assert [key for key in match if match[key].matches("a b")] == ["client_id"]


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


NOW_MS = 1_700_000_000_000


def new_file(path: Path) -> SubscriptionFile:
    return SubscriptionFile(path, ClientMetrics(new_id=lambda: bytes(16)), lambda: NOW_MS)


@pytest.fixture
def file(tmp_path: Path) -> SubscriptionFile:
    """A loaded file with one subscription."""
    path = tmp_path / "subscriptions.yaml"
    path.write_text("one: {metrics: a, interval.ms: 1000}\n")
    file = new_file(path)
    file.load()
    return file


def test_accepted_value_forms() -> None:
    text = """
    texts: {metrics: "a,b", interval.ms: "2000", match: "client_id=x,client_software_name=y"}
    lists:
      metrics: [a, b]
      interval.ms: 2000
      match: [client_id=x, client_software_name=y]
    mapping:
      match: {client_id: x, client_source_port: 9092}
    empty: {metrics: }
    nothing: {}
    """
    assert parse(text, MATCH_KEYS) == {
        "texts": {"metrics": "a,b", "interval.ms": "2000", "match": "client_id=x,client_software_name=y"},
        "lists": {"metrics": "a,b", "interval.ms": "2000", "match": "client_id=x,client_software_name=y"},
        "mapping": {"match": "client_id=x,client_source_port=9092"},
        "empty": {"metrics": ""},
    }


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_empty_file_has_no_subscriptions(text: str) -> None:
    assert parse(text, MATCH_KEYS) == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "not YAML: "),
        ("a: {}\na: {}", "not YAML: a a second time"),
        ("- a", "not a mapping of subscriptions"),
        ("text", "not a mapping of subscriptions"),
        ("a: text", "a: not a mapping of metrics, interval.ms and match"),
        ("a: {interval: 5}", "a: unknown: interval"),
        ("a: {interval.ms: 5}", "a: Invalid value 5 for interval.ms, interval must be between 100 and"),
        ("a: {interval.ms: true}", "a: interval.ms: True is neither text nor a list of it"),
        ("a: {interval.ms: [1000]}", "a: interval.ms: [1000] is neither text nor a list of it"),
        ("a: {metrics: {b: c}}", "a: metrics: {'b': 'c'} is neither text nor a list of it"),
        ("a: {metrics: [b, null]}", "a: metrics: None is neither text nor a list of it"),
        ("a: {match: {client_id: }}", "a: client_id: None is neither text nor a list of it"),
        ("a: {match: {client_software_version: 3.10}}", "a: client_software_version: 3.1 is neither text"),
        ("a: {match: principal=x}", "a: Illegal client matching pattern: principal=x"),
        ("yes: {metrics: a}", "True: not a text: put it in quotes"),
        ('"": {metrics: a}', ": Subscription name can't be empty"),
    ],
)
def test_invalid_file_is_refused_with_its_location(text: str, fault: str) -> None:
    with pytest.raises(SubscriptionFileError) as refused:
        parse(text, MATCH_KEYS)
    assert refused.value.faults[0].startswith(fault)


def test_all_errors_are_reported() -> None:
    with pytest.raises(SubscriptionFileError) as refused:
        parse("a: {interval.ms: 5}\nb: {metrics: x}\nc: {nope: 1}", MATCH_KEYS)
    assert [fault[0] for fault in refused.value.faults] == ["a", "c"]


def test_extra_selectors_of_a_file_are_accepted_when_enabled() -> None:
    assert parse("a: {match: {principal: x}}", EXTRA_MATCH_KEYS) == {"a": {"match": "principal=x"}}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(TEXTS, st.fixed_dictionaries({"metrics": st.sampled_from(["*", "", "on", "1", "ä.,b\t"])})))
def test_dumped_subscriptions_are_parsed_back(resources: dict[str, dict[str, str]]) -> None:
    assert parse(dump(resources), MATCH_KEYS) == resources


def test_changed_file_is_applied_once(file: SubscriptionFile) -> None:
    file.path.write_text("one: {metrics: a}\ntwo: {metrics: b}\n")
    for _ in range(2):
        file.follow()
        assert set(file.rules.subscriptions) == {"one", "two"}
        assert (file.rules.changed_at_ms, file.rules.subscriptions.version) == (NOW_MS, 2)


def test_broken_file_keeps_previous_subscriptions_until_fixed(file: SubscriptionFile) -> None:
    file.path.write_text("one: {metrics: a")
    file.follow()
    file.follow()
    assert set(file.rules.subscriptions) == {"one"}
    assert "not YAML" in (file.fault or "")
    with pytest.raises(OSError, match="not YAML"):
        file.keep({"two": {"metrics": "b"}})
    file.path.write_text("three: {metrics: c}")
    file.follow()
    assert file.fault is None
    assert set(file.rules.subscriptions) == {"three"}


def test_deleted_file_keeps_previous_subscriptions(file: SubscriptionFile) -> None:
    file.path.unlink()
    file.follow()
    assert "No such file" in (file.fault or "")
    assert set(file.rules.subscriptions) == {"one"}


def test_keep_writes_the_file_and_applies_subscriptions(file: SubscriptionFile) -> None:
    file.keep({"two": {"metrics": "b"}, "one": {}})
    assert set(file.rules.subscriptions) == {"two"}
    version = file.rules.subscriptions.version
    file.follow()  # a write by the sink itself is not reported as a change
    assert file.rules.subscriptions.version == version
    again = new_file(file.path)
    again.load()
    assert again.rules.resources == {"two": {"metrics": "b"}}


def test_symlink_is_preserved_and_no_temporary_file_remains(file: SubscriptionFile, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file.path)
    linked = new_file(link)
    linked.load()
    linked.keep({"two": {"metrics": "b"}})
    assert link.is_symlink()
    assert "two" in file.path.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "subscriptions.yaml"]
    assert stat.S_ISREG(file.path.stat().st_mode)
