"""`headroom demo` ends as its script says: levels, limits, telemetry of its clients, and usage as the broker has it."""

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.model import QuotaKey
from headroom.demo.job import run_job
from headroom.demo.jvm import Jvm
from headroom.demo.processes import LOOPBACK, free_ports
from headroom.demo.run import REPORT
from headroom.demo.scenario import CLUSTER, Minute, Scenario
from headroom.demo.script import CLIENTS, FAMILIES
from tests.kit.kafka.jmx import jmx_options
from tests.kit.serving import eventually
from tests.kit.surfaces import Client, Surfaces

pytestmark = [
    pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.spark, pytest.mark.alone,
    pytest.mark.release,
]  # fmt: skip

TOLERANCE = 0.05  # Headroom's usage compared with the broker's byte-rate over the same minute
LEVELS_WITHIN_S = 50.0  # after the minute: then the pages turn to the next one
SCRIPTED = {(client.quota_key, client.client_id): client.script.level for client in CLIENTS}
SOFTWARE = "SELECT client_id, software_name FROM client_metrics WHERE cluster = {cluster:String} LIMIT 1 BY client_id"
THROTTLED = (
    "SELECT client_id FROM quota_usage WHERE cluster = {cluster:String} AND source = 'gateway' AND throttle_ms > 0"
    " AND ts > fromUnixTimestamp64Milli({from_ms:Int64}) AND ts <= fromUnixTimestamp64Milli({to_ms:Int64})"
    " LIMIT 1 BY client_id"
)


class Demo(NamedTuple):
    """The results of one run."""

    rows: dict[tuple[str, str], dict[str, Any]]  # of the job's report, by quota key and client id
    byte_rates: dict[tuple[str, str], float]  # of the broker, means of the minute
    levels: dict[str, dict[Client, str]]
    pushed: set[str]
    throttled: set[str]


@pytest.fixture(scope="module")
def demo(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    output = tmp_path_factory.mktemp("demo")
    (jmx_port,) = free_ports(1)
    with ExitStack() as stack:
        scenario = Scenario(stack, print)
        scenario.build(jmx_options(jmx_port))
        with broker_sensors(jvm, jmx_port) as read:
            minute, byte_rates = measured(scenario, read)
        sql, http = scenario.serving.sql, scenario.serving.http
        levels = live_levels(Surfaces(http, sql), minute)
        scenario.quiet_down()
        run_job(sql, minute.from_ms, minute.to_ms, output, output / "job.log")
        rows = json.loads((output / REPORT).read_bytes())
        clickhouse = ClickHouse((Endpoint.parse(f"http://{sql}"),))
        parameters = {"cluster": CLUSTER, "from_ms": minute.from_ms, "to_ms": minute.to_ms}
        pushed, throttled = (
            {row["client_id"] for row in clickhouse.rows(query, parameters)} for query in (SOFTWARE, THROTTLED)
        )
        clickhouse.close()
    assert (output / "report.html").exists()
    assert (output / "headroom.parquet").exists()
    levels["job"] = {(row["user"], row["client_id"]): row["level"] for row in rows}
    report = {(row["quota_key"], row["client_id"]): row for row in rows}
    return Demo(report, byte_rates, levels, pushed, throttled)


def live_levels(surfaces: Surfaces, minute: Minute) -> dict[str, dict[Client, str]]:
    """By surface, once they agree."""

    def ask() -> dict[str, dict[Client, str]]:
        live = {"page": surfaces.page(CLUSTER), "API": surfaces.api(CLUSTER), "top": surfaces.top(CLUSTER)}
        live["view"] = surfaces.view(CLUSTER, minute.from_ms)
        return {name: {client: one[0] for client, one in shown.items()} for name, shown in live.items()}

    def agree(found: dict[str, dict[Client, str]]) -> bool:
        return all(levels and levels == found["view"] for levels in found.values())

    return eventually(ask, agree, minute.to_ms / 1000 + LEVELS_WITHIN_S - time.time(), 1.0)


@contextmanager
def broker_sensors(jvm: Jvm, port: int) -> Iterator[Callable[[], dict[tuple[str, str], float]]]:
    """Reads the byte-rate of the broker's quota sensors by JMX, by quota key and client id."""
    management = jvm.classes.javax.management
    url = management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{LOOPBACK}:{port}/jmxrmi")
    connector = management.remote.JMXConnectorFactory.connect(url)
    beans = connector.getMBeanServerConnection()
    types = {"Produce": QuotaKey.PRODUCER_BYTE_RATE, "Fetch": QuotaKey.CONSUMER_BYTE_RATE}

    def read() -> dict[tuple[str, str], float]:
        return {
            (quota_key, name.getKeyProperty("client-id")): beans.getAttribute(name, "byte-rate")
            for kind, quota_key in types.items()
            for name in beans.queryNames(management.ObjectName(f"kafka.server:type={kind},client-id=*,*"), None)
        }

    yield read
    connector.close()


def measured(
    scenario: Scenario, read: Callable[[], dict[tuple[str, str], float]]
) -> tuple[Minute, dict[tuple[str, str], float]]:
    """The demo's minute, and what the broker's sensors showed in it, once a second."""
    samples: list[tuple[float, dict[tuple[str, str], float]]] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(1.0):
            samples.append((time.time() * 1000, read()))

    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        minute = scenario.measure()
    finally:
        ended.set()
        sampling.join()
    rates = defaultdict[tuple[str, str], list[float]](list)
    for at_ms, byte_rates in samples:
        for key, byte_rate in byte_rates.items():
            if minute.from_ms < at_ms <= minute.to_ms and math.isfinite(byte_rate):
                rates[key].append(byte_rate)
    return minute, {key: sum(values) / len(values) for key, values in rates.items()}


def test_each_client_has_the_scripted_level_and_limit(demo: Demo) -> None:
    assert {key: row["level"] for key, row in demo.rows.items()} == SCRIPTED
    limits = {(client.quota_key, client.client_id): client.limit for client in CLIENTS}
    assert {key: row["limit"] for key, row in demo.rows.items()} == limits


def test_every_interface_shows_the_same_level(demo: Demo) -> None:
    assert set(demo.levels) == {"page", "API", "view", "top", "job"}
    assert {name: levels for name, levels in demo.levels.items() if levels != demo.levels["job"]} == {}


@pytest.mark.parametrize("client", [client for client in CLIENTS if client.habit in ("warn", "throttled")], ids=str)
def test_usage_is_the_byte_rate_of_the_broker(demo: Demo, client: Any) -> None:
    key = (client.quota_key, client.client_id)
    assert demo.rows[key]["usage"] == pytest.approx(demo.byte_rates[key], rel=TOLERANCE)


def test_clients_of_both_families_push_and_throttling_is_seen_on_the_wire(demo: Demo) -> None:
    for family in FAMILIES:
        assert any(client.client_id in demo.pushed for client in CLIENTS if client.family == family)
    assert {client.client_id for client in CLIENTS if client.habit == "throttled"} <= demo.throttled
