"""The sensors of a real broker, as other people's exporters show them: all read the same as the broker's own JMX."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import fetch_once
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import LOOPBACK, free_ports, start, stop
from quota_metrics.jmx.scrape import Agent, ScrapeError, Target, scrape
from quota_metrics.jmx.sensors import SensorReading
from tests.kit.kafka.jmx import jmx_options
from tests.kit.serving import eventually

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.slow]

CLIENTS = ("plain-app", "app, user=bob", "app, client-id=carol", "a:b*?")
ANONYMOUS = "ANONYMOUS"
_DEPENDENCY = '<dependency org="{0}" name="{1}" rev="{2}"/>'
_STRIMZI = ("io.strimzi", "metrics-reporter", "0.2.0")
_JMX_EXPORTER = ("io.prometheus.jmx", "jmx_prometheus_httpserver", "1.0.1")
_OURS = Path(__file__).parents[3] / "deploy" / "jmx" / "kafka-quotas.yml"
_BEAN = "kafka.server<type=(Produce|Fetch|Request|ControllerMutation)"


def rule(pattern: str, name: str, **labels: str) -> str:
    """A rule of the exporter, in its YAML."""
    lines = [f"  - pattern: '{pattern}'", f"    name: {name}", "    type: GAUGE", *(["    labels:"] if labels else [])]
    return "\n".join([*lines, *(f'      "{label}": "{value}"' for label, value in labels.items()), ""])


_OF_USER = rule("kafka.server<type=(.+), user=(.+)><>([a-z-]+)", "kafka_server_quota_$3", resource="$1", user="$2")
_OF_CLIENT_ID = _OF_USER.replace("user=", "client-id=").replace('"user"', '"clientId"')
RULES = {
    "Headroom's rules": _OURS.read_text().partition("rules:\n")[2],
    "rules for each property, the client id's first": _OF_CLIENT_ID + _OF_USER,
    "rules for each property, the user's first": _OF_USER + _OF_CLIENT_ID,
    "the type in the name": (
        rule(f"{_BEAN}, user=(.+), client-id=(.+)><>(.+):", "kafka_server_$1_$4", user="$2", **{"client-id": "$3"})
        + rule(f"{_BEAN}, client-id=(.+)><>(.+):", "kafka_server_$1_$3", **{"client-id": "$2"})
    ),
    "the attribute in a label": (
        rule(
            f"{_BEAN}, user=(.+), client-id=(.+)><>(.+):",
            "kafka_server_$1",
            user="$2",
            client_id="$3",
            attribute_name="$4",
        )
        + rule(f"{_BEAN}, client-id=(.+)><>(.+):", "kafka_server_$1", client_id="$2", attribute_name="$3")
    ),
    "no rules": "",
}


class Exposed(NamedTuple):
    """Where each exporter shows the sensors of the broker."""

    by_exporter: dict[str, str]
    jvm: Jvm
    bootstrap: str

    def produce(self) -> None:
        for client_id in CLIENTS:
            with closing(self.jvm.producer(self.bootstrap, client_id)) as producer:
                record = self.jvm.classes.org.apache.kafka.clients.producer.ProducerRecord(
                    "sensors", self.jvm.bytes_of(1000)
                )
                producer.send(record).get()


@pytest.fixture(scope="module")
def exposed(
    java: str, jvm: Jvm, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Exposed]:
    cache, directory = request.config.rootpath / ".cache" / "exporters", tmp_path_factory.mktemp("exporters")
    libs = {}
    for artifact in (_STRIMZI, _JMX_EXPORTER):
        libs[artifact] = (cache / artifact[1] / "libs").absolute()
        fetch_once(java, libs[artifact], _DEPENDENCY.format(*artifact), print, f"{artifact[1]} (a few MB, once)")
    classpath = directory / "kafka" / "libs"
    classpath.mkdir(parents=True)
    for jar in (*kafka_libs.glob("*.jar"), *libs[_STRIMZI].glob("*.jar")):
        (classpath / jar.name).symlink_to(jar.absolute())
    jmx, reporter, *ports = free_ports(2 + len(RULES))
    properties = {
        "metric.reporters": "org.apache.kafka.common.metrics.JmxReporter,"
        "io.strimzi.kafka.metrics.KafkaPrometheusMetricsReporter",
        "prometheus.metrics.reporter.listener": f"http://{LOOPBACK}:{reporter}",
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(java, classpath, properties=properties, jvm_options=jmx_options(jmx))
        )
        admin = stack.enter_context(Admin(jvm, cluster.bootstrap))
        admin.create_topics(["sensors"])
        admin.alter_quota({"user": None, "client-id": None}, {"producer_byte_rate": 1e9})
        for port, rules in zip(ports, RULES.values(), strict=True):
            config = directory / f"{port}.yml"
            head = f'hostPort: "{LOOPBACK}:{jmx}"\nincludeObjectNames: ["kafka.server:*"]\n'
            config.write_text(head + (f"rules:\n{rules}" if rules else ""))
            [jar] = libs[_JMX_EXPORTER].glob("*.jar")
            options = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
            argv = [java, *options, "-jar", str(jar), f"{LOOPBACK}:{port}", str(config)]
            stack.callback(stop, start(argv, stderr=subprocess.DEVNULL), 5.0)
        urls = dict(zip(RULES, (f"http://{LOOPBACK}:{port}/metrics" for port in ports), strict=True))
        yield Exposed(
            urls | {"Strimzi's Metrics Reporter": f"http://{LOOPBACK}:{reporter}/metrics"}, jvm, cluster.bootstrap
        )


@pytest.mark.parametrize("exporter", [*RULES, "Strimzi's Metrics Reporter"])
def test_each_exporter_shows_the_same_clients(exposed: Exposed, exporter: str) -> None:
    target = Target(1, Agent.PROMETHEUS, exposed.by_exporter[exporter])

    def read() -> SensorReading:
        exposed.produce()
        try:
            return scrape(target, timeout_s=10, max_bytes=1 << 24)
        except ScrapeError:  # it starts
            return SensorReading({})

    def rates(reading: SensorReading) -> dict[tuple[str, str], float]:
        produced = {place[1:]: values for place, values in reading.values.items() if place[0] == "Produce"}
        return {place: values["byte-rate"] for place, values in produced.items() if "byte-rate" in values}

    expected = {(ANONYMOUS, client_id) for client_id in CLIENTS}
    reading = eventually(
        read, lambda reading: expected <= {place for place, rate in rates(reading).items() if rate > 0}
    )
    assert {place for place in rates(reading) if place[1]} == expected
    assert all(rate > 0 for rate in rates(reading).values())
    assert reading[1:] == (0, 0, 0)
