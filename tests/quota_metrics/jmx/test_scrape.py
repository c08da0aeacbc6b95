"""Quota sensors: expositions of exporters, Jolokia's bulk read, and one scrape over HTTP."""

import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.demo.processes import free_ports
from quota_metrics.jmx.prometheus import read_exposition
from quota_metrics.jmx.scrape import Agent, ScrapeError, Target, scrape
from quota_metrics.jmx.sensors import SensorReading, jolokia_request, read_jolokia, unquoted, usage_samples


def read(text: str) -> SensorReading:
    return read_exposition(text.encode())


def test_jmx_quoting_and_prometheus_escapes_are_decoded() -> None:
    line = r'kafka_server_quota_byte_rate{clientId="\"a\\\"b:\\*?,}=\"",resource="Produce"} 1'
    assert list(read(line).values) == [("Produce", "", 'a"b:*?,}=')]
    assert [unquoted(name) for name in ('"a\\nb"', '"', "plain", '"\\\\"')] == ["a\nb", '"', "plain", "\\"]


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
    "labels in other spellings": 'kafka_server_quota_ATTRIBUTE_ms{quota_type="bean",principal="alice",clientid="app"}',
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
        'kafka_server_quota_byte_rate{clientId="c",resource="LeaderReplication"} 4\n'
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


ANSWER = [
    {
        "request": {"mbean": "kafka.server:type=Produce,*", "type": "read"},
        "value": {
            "kafka.server:client-id=app,type=Produce,user=user%20with%20spaces": {
                "byte-rate": 1234.5,
                "throttle-time": 70.25,
            },
            'kafka.server:client-id="a,b=\\"c\\"",type=Produce': {"byte-rate": 1, "throttle-time": "NaN"},
            "kafka.server:type=Produce": {"byte-rate": "ERROR: javax.management.AttributeNotFoundException"},
        },
        "status": 200,
    },
    {
        "request": {"mbean": "kafka.server:type=Fetch,*", "type": "read"},
        "error_type": "javax.management.InstanceNotFoundException",
        "status": 404,
    },
    {"value": {"kafka.server:type=Request,user=alice": {"request-time": 2.5, "throttle-time": None}}, "status": 200},
]


def test_bulk_request_reads_each_quota_type() -> None:
    asked = orjson.loads(jolokia_request())
    assert [read["mbean"] for read in asked] == [
        f"kafka.server:type={bean},*" for bean in ("Produce", "Fetch", "Request", "ControllerMutation")
    ]
    assert [read["attribute"][0] for read in asked] == ["byte-rate", "byte-rate", "request-time", "mutation-rate"]


def test_bulk_response_is_parsed_into_names_and_values() -> None:
    reading = read_jolokia(orjson.dumps(ANSWER))
    assert reading.values == {
        ("Produce", "user with spaces", "app"): {"byte-rate": 1234.5, "throttle-time": 70.25},
        ("Produce", "", 'a,b="c"'): {"byte-rate": 1.0},
        ("Request", "alice", ""): {"request-time": 2.5},
    }
    assert reading.malformed == 0


def test_invalid_beans_are_counted_as_malformed() -> None:
    values = {"java.lang:type=Memory": {}, "kafka.server:type=Produce,x": {}, "kafka.server:type=Produce,user=a": 1}
    assert read_jolokia(orjson.dumps([{"status": 200, "value": values}])).malformed == 3


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"<html>", b"null"])
def test_invalid_bulk_response_raises_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_jolokia(body)


METRICS = b'kafka_server_quota_byte_rate{clientId="a",resource="Produce"} 1\n'


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers.get("Authorization", "")))  # type: ignore[attr-defined] # ours
        status = {"/denied": 401}.get(self.path, 200)
        self.send_response(status)
        self.end_headers()
        if self.path == "/endless":
            while True:
                self.wfile.write(METRICS * 100)
        if self.path == "/slow":
            for _ in range(20):
                self.wfile.write(b"#\n")
                time.sleep(0.05)
        self.wfile.write(METRICS)

    def do_POST(self) -> None:
        self.server.seen.append((self.command, self.path, self.rfile.read(int(self.headers["Content-Length"]))[:9]))  # type: ignore[attr-defined] # ours
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'[{"status":200,"value":{"kafka.server:client-id=a,type=Produce":{"byte-rate":1}}}]')

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is reported."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            """The client has seen enough."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen = []  # type: ignore[attr-defined] # ours
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def target(server: ThreadingHTTPServer, path: str, agent: Agent = Agent.PROMETHEUS, user: str = "") -> Target:
    return Target(1, agent, f"http://{user}127.0.0.1:{server.server_port}{path}")


def test_scrape_sends_get_for_prometheus_and_post_for_jolokia(server: ThreadingHTTPServer) -> None:
    exposed = scrape(target(server, "/metrics?x=1", user="me:s%40cret@"), timeout_s=5, max_bytes=1 << 20)
    paths = ("/jolokia/", "/jolokia", "/jolokia?x=1", "")  # the agent answers 404 without the slash
    answers = [scrape(target(server, path, Agent.JOLOKIA), timeout_s=5, max_bytes=1 << 20) for path in paths]
    assert all(answer.values == exposed.values == {("Produce", "", "a"): {"byte-rate": 1.0}} for answer in answers)
    assert server.seen == [  # type: ignore[attr-defined] # ours
        ("GET", "/metrics?x=1", "Basic bWU6c0BjcmV0"),
        *(("POST", path, b'[{"type":') for path in ("/jolokia/", "/jolokia/", "/jolokia/?x=1", "/")),
    ]


@pytest.mark.parametrize(
    ("path", "timeout_s", "said"),
    [("/denied", 30.0, "answered 401"), ("/endless", 30.0, "larger than 100000 bytes"), ("/slow", 0.3, "too long")],
)
def test_invalid_response_raises_scrape_error(
    server: ThreadingHTTPServer, path: str, timeout_s: float, said: str
) -> None:
    with pytest.raises(ScrapeError, match=said):
        scrape(target(server, path, user="me:hidden@"), timeout_s=timeout_s, max_bytes=100_000)


def test_unreachable_target_raises_scrape_error_without_password() -> None:
    with pytest.raises(ScrapeError, match="refused") as caught:
        scrape(Target(1, Agent.JOLOKIA, f"http://me:hidden@127.0.0.1:{free_ports(1)[0]}/"), timeout_s=1, max_bytes=10)
    assert "hidden" not in str(caught.value)
