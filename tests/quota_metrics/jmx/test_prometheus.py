"""Quota sensors in expositions: documented names, other labels, mangled names, invalid lines."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.jmx.prometheus import read_exposition
from quota_metrics.jmx.sensors import SensorReading, unquoted, usage_samples


def read(text: str) -> SensorReading:
    return read_exposition(text.encode())


def test_jmx_quoting_and_prometheus_escapes_are_decoded() -> None:
    line = r'kafka_server_quota_byte_rate{clientId="\"a\\\"b:\\*?,}=\"",resource="Produce"} 1'
    assert list(read(line).values) == [("Produce", "", 'a"b:*?,}=')]
    assert [unquoted(name) for name in ('"a\\nb"', '"', "plain", '"\\\\"')] == ["a\nb", '"', "plain", "\\"]


def test_alternative_label_names_are_accepted() -> None:
    reading = read(
        'kafka_server_quota_byte_rate{client_id="a",type="produce"} 1\n'
        'kafka_server_quota_byte_rate{clientid="b",quota_type="FETCH"} 2\n'
        'kafka_server_quota_throttle_time_ms{client_id="a",type="Produce"} 3\n'
        'kafka_server_quota_byte_rate{clientId="c",resource="LeaderReplication"} 4\n'
    )
    assert reading.values == {
        ("Produce", "", "a"): {"byte-rate": 1.0, "throttle-time": 3.0},
        ("Fetch", "", "b"): {"byte-rate": 2.0},
    }


# A sensor of one client as exporters write it: name and labels as their rules or code make them. BEAN
# and ATTRIBUTE stand for `Produce` and `byte_rate`, bean for `produce`, ATTRI-BUTE for `byte-rate`.
EXPORTERS = {
    "Headroom's rules": 'kafka_server_quota_ATTRIBUTE{clientId="app",resource="BEAN",user="alice"}',
    "Strimzi's Metrics Reporter": 'kafka_server_bean_ATTRIBUTE{client_id="app",user="alice"}',
    "Confluent's jmx-monitoring-stacks": 'kafka_server_bean_ATTRIBUTE{client_id="app",user="alice",}',
    "the JMX exporter without rules": 'kafka_server_BEAN_ATTRIBUTE{user="alice",client_id="app"}',
    "kafka-2_0_0.yml": 'kafka_server_quota_ATTRIBUTE{clientId="app",resource="BEAN, user=alice"}',
    "rules with the user's first": 'kafka_server_quota_ATTRIBUTE{resource="BEAN",user="alice, client-id=app"}',
    "beans with the client id first": 'kafka_server_quota_ATTRIBUTE{resource="BEAN",clientId="app, user=alice"}',
    "type and attribute in the name": 'kafka_server_quota_BEAN_ATTRIBUTE{user="alice",client="app"}',
    "the attribute in a label": 'kafka_server_bean{user="alice",client_id="app",attribute_name="ATTRI-BUTE"}',
    "type in a label": 'kafka_server_quota_ATTRIBUTE{type="BEAN",user="alice",client_id="app"}',
}
SENSORS = [
    ("Produce", "byte_rate", "7.5E0"),
    ("Produce", "throttle_time", 20.0),
    ("Request", "request_time", 0.5),
    ("Request", "throttle_time", math.nan),
    ("Request", "queue_size", 5.0),
    ("ControllerMutation", "mutation_rate", 3.0),
    ("ControllerMutation", "tokens", 9.0),
]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_names_of_each_exporter_are_read(exporter: str) -> None:
    lines = ["# HELP kafka_server_produce_byte_rate Use it in allowlist", "kafka_server_produce_queue_size 0.0"]
    for bean, attribute, value in SENSORS:
        line = EXPORTERS[exporter].replace("BEAN", bean).replace("bean", bean.lower())
        dashed = attribute.replace("_", "-")
        lines.append(f"{line.replace('ATTRIBUTE', attribute).replace('ATTRI-BUTE', dashed)} {value}")
    reading = read("\n".join(lines))
    assert reading.values["Produce", "alice", "app"] == {"byte-rate": 7.5, "throttle-time": 20.0}
    assert reading.values["Request", "alice", "app"]["request-time"] == 0.5
    assert reading.values["ControllerMutation", "alice", "app"] == {"mutation-rate": 3.0}
    assert {place[1:] for place in reading.values} == {("alice", "app")}
    assert reading[1:] == (0, 0, 0)


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ('user="alice",client_id=""', ("Fetch", "alice", "")),
        ('user="",client_id="app"', ("Fetch", "", "app")),
        ('user="CN%3Dalice%2CO%3Dx",client_id="app"', ("Fetch", "CN=alice,O=x", "app")),
        ('user="alice",client_id="app, user=bob"', ("Fetch", "alice", "app, user=bob")),
        ('client_id="app, user=bob"', ("Fetch", "", "app, user=bob")),
        ('user="alice",client_id="app",pod="kafka-0",type="broker",instance="b1"', ("Fetch", "alice", "app")),
    ],
)
def test_no_client_can_write_another_users_name(labels: str, place: tuple[str, str, str]) -> None:
    assert list(read(f"kafka_server_fetch_byte_rate{{{labels}}} 1").values) == [place]


def test_quoted_client_id_is_not_taken_for_a_user() -> None:
    line = r'kafka_server_quota_byte_rate{resource="Fetch",clientId="\"app, user=bob\""} 1'
    assert list(read(line).values) == [("Fetch", "", "app, user=bob")]


def test_other_metrics_of_such_names_are_no_sensors() -> None:
    reading = read(
        'kafka_server_replica_fetcher_metrics_incoming_byte_rate{client_id="x"} 1\n'
        'kafka_server_fetch_sessions{user="x"} 1\nkafka_server_request_handler_avg_idle_percent{user="x"} 1\n'
        'kafka_server_produce_request_time{user="x"} 1\nkafka_server_fetch_byte_rate 3\n'
        'kafka_server_socket_server_metrics_byte_rate{client_id="x"} 1\nkafka_server_quota{user="x"} 1\n'
    )
    assert reading == SensorReading({})


MANGLED = """kafka_server_produce_user_anonymous_client_id_app1_byte_rate 121004.01606425703
kafka_server_produce_user_anonymous_client_id_app1_throttle_time 1000.7142857142857
kafka_server_produce_user_anonymous_client_id_my_app_byte_rate 2.0
kafka_server_fetch_client_id_my_app_byte_rate 3.0
kafka_server_request_user_b_20c_request_time 4.0
kafka_server_produce_queue_size 2.0
"""  # the first two as an exporter 1.0.1 with the rules for KRaft gave them


def test_mangled_names_are_resolved_to_unique_known_clients() -> None:
    clients = {("ANONYMOUS", "App1"), ("ANONYMOUS", "my-app"), ("ANONYMOUS", "my.app"), ("b c", "")}
    reading = read_exposition(MANGLED.encode(), clients)
    assert reading.values == {
        ("Produce", "ANONYMOUS", "App1"): {"byte-rate": 121004.01606425703, "throttle-time": 1000.7142857142857},
        ("Request", "b c", ""): {"request-time": 4.0},
    }
    assert (reading.ambiguous, reading.malformed) == (2, 0)
    assert read(MANGLED) == SensorReading({}, ambiguous=5)


def test_documented_names_override_mangled_names() -> None:
    reading = read(
        'kafka_server_quota_byte_rate{clientId="app",resource="Produce"} 1\n'
        "kafka_server_produce_client_id_app_byte_rate 2\n"
    )
    assert reading.values == {("Produce", "", "app"): {"byte-rate": 1.0}}


def test_malformed_line_is_skipped() -> None:
    reading = read(
        'kafka_server_quota_byte_rate{clientId="app\nkafka_server_quota_byte_rate{x} y\n'
        'kafka_server_quota_byte_rate{clientId="b",resource="Produce"} 1\n'
    )
    assert (list(reading.values), reading.malformed) == ([("Produce", "", "b")], 2)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_random_bytes_raise_nothing(name: bytes, rest: bytes) -> None:
    read_exposition(b"kafka_server_quota_" + name + b"{" + rest + b"\nkafka_server_produce_user_" + name)


def test_usage_samples_of_sensor_values() -> None:
    values = {
        ("Produce", "alice", "app"): {"byte-rate": 10.0, "throttle-time": math.nan},
        ("Request", "bob", ""): {"request-time": 0.0, "throttle-time": 7.0},
        ("Fetch", "", "idle"): {"byte-rate": 0.0, "throttle-time": math.nan},
        ("Fetch", "", "gone"): {"byte-rate": math.nan},
        ("ControllerMutation", "bob", ""): {"throttle-time": 7.0},
    }
    rows = usage_samples(values.items(), "c", 3, 99)
    assert [(row.quota_key, row.user, row.client_id, row.rate, row.throttle_ms) for row in rows] == [
        ("producer_byte_rate", "alice", "app", 10.0, 0.0),
        ("request_percentage", "bob", "", 0.0, 7.0),
    ]
    assert {(row.cluster, row.ts_ms, row.broker_id, row.bytes, row.source) for row in rows} == {("c", 99, 3, 0, "jmx")}
