"""Throttled clients through the gateway: our numbers, the JMX exporter's and Jolokia's against the broker's by JMX."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from exporters.model import CONTROLLER
from headroom.clock import now_ms
from headroom.demo.jvm import Jvm
from headroom.demo.scenario import Serving
from quota_metrics.jmx.scrape import Agent, scrape
from tests.kit.serving import eventually, page, rows
from tests.quota_metrics.measure import quota_truth
from tests.quota_metrics.measure.quota_truth import CONSUMER, CONSUMES, PRODUCER, PRODUCES, SHARED, USER, Bucket, Loaded

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.alone]

BUCKETS: list[Bucket] = [(PRODUCER, USER, PRODUCES), (CONSUMER, USER, CONSUMES), SHARED]
TOLERANCE = 0.02


@pytest.fixture(scope="module")
def loaded(
    java: str, kafka_libs: Path, jvm: Jvm, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Loaded]:
    spool = tmp_path_factory.mktemp("spool")
    with quota_truth.loaded_broker(java, kafka_libs, jvm, request.config.rootpath, spool) as running:
        yield running


def test_rates_and_throttle_times_match_the_broker(loaded: Loaded) -> None:
    differences = quota_truth.compare(loaded.truth, loaded.gateway, 60.0)
    free = [(PRODUCER, USER, client_id) for client_id in (quota_truth.STEADY, quota_truth.BURSTY)]
    compared = [(bucket, what) for bucket in BUCKETS for what in ("rate", "throttle")]
    for place in [*compared, *((bucket, "rate") for bucket in free)]:
        assert differences[place] < TOLERANCE, (place, differences)
    assert ((PRODUCER, USER, quota_truth.IDLE), "rate") not in differences


def test_mutations_match_the_controller(loaded: Loaded) -> None:
    client = AdminClient({"bootstrap.servers": loaded.gateway.bootstrap, "client.id": quota_truth.MUTATES})
    steps: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: client.create_topics([NewTopic("mutated", 20, 1)]),
        lambda: client.create_topics([NewTopic("never", 9, 1)], validate_only=True),  # KRaft charges these, too
        lambda: client.create_partitions([NewPartitions("mutated", 30)]),
        lambda: client.delete_topics(["mutated"]),
    )
    for step in steps:  # one after another: each needs the one before
        for changed in step().values():
            changed.result(60)
    at_ms = now_ms()
    (row,) = (row for row in loaded.gateway.meter.samples(at_ms) if row.quota_key == quota_truth.MUTATIONS)
    assert (row.user, row.client_id, row.broker_id) == (USER, quota_truth.MUTATES, CONTROLLER)
    assert row.rate == pytest.approx(69 / 10, rel=0.1)  # the divisor grows between 10 and 11 s
    assert 30 * loaded.truth.mutation_rate(quota_truth.MUTATES) == pytest.approx(69, rel=0.2)  # 30 to 36 s


@pytest.mark.parametrize("agent", list(Agent))
def test_scraped_rates_match_jmx(loaded: Loaded, agent: Agent) -> None:
    eventually(loaded.truth.sensors, lambda sensors: set(BUCKETS) <= sensors.keys())
    rounds: list[tuple[float, list[float]]] = []  # how long it took, and distances from the broker's values around it
    for _ in range(20):
        begun = time.monotonic()
        before = loaded.truth.sensors()
        read = scrape(loaded.agents[agent], timeout_s=60, max_bytes=1 << 24)
        after = loaded.truth.sensors()
        took_s = time.monotonic() - begun
        assert (read.ambiguous, read.malformed, read.left_out) == (0, 0, 0)
        distances = []
        for quota_key, user, client_id in BUCKETS:
            bean = "Produce" if quota_key == PRODUCER else "Fetch"
            rate = read.values[bean, user, client_id]["byte-rate"]
            low, high = sorted(sensors[quota_key, user, client_id][0] for sensors in (before, after))
            distances.append(max(low - rate, rate - high, 0.0) / low)
        rounds.append((took_s, distances))
        time.sleep(0.3)
    # A rate may rise and fall within a slow round, beyond the values around it.
    apart = [distance for _, distances in sorted(rounds)[: len(rounds) // 2] for distance in distances]
    assert sorted(apart)[int(len(apart) * 0.9)] < TOLERANCE, apart


@pytest.mark.clickhouse
def test_scraped_usage_is_served_and_stored(loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load does not pass through this Headroom, so all of its values come from the broker."""
    target = loaded.agents[Agent.JOLOKIA]
    targets = [{"broker_id": 1, "agent": "jolokia", "url": target.url}]
    monkeypatch.setenv("HEADROOM_QUOTAS__METRICS__ENABLED", "true")
    monkeypatch.setenv("HEADROOM_QUOTAS__CALLBACK", "tests.kit.quota_callback:kafkas_own_rules")
    monkeypatch.setenv("HEADROOM_QUOTAS__JMX__TARGETS", json.dumps(targets))
    monkeypatch.setenv("HEADROOM_QUOTAS__JMX__INTERVAL_MS", "500")
    with Serving(loaded.bootstrap, tmp_path) as serving:
        of_client = f'{{client_id="{PRODUCES}",kafka_cluster="demo",quota_type="Produce",source="jmx",user="{USER}"}}'
        text = eventually(
            lambda: page(serving.http, "/metrics"),
            lambda text: f"kafka_client_quota_utilization_ratio{of_client}" in text,
        )
        values = dict(line.rsplit(" ", 1) for line in text.splitlines())
        assert values[f"kafka_client_quota_limit{of_client}"] == "300000.0"
        utilization = float(values[f"kafka_client_quota_utilization_ratio{of_client}"])
        assert 0.8 < utilization < 1.5  # it wants more than it may
        assert float(values[f"kafka_client_throttle_seconds{of_client}"]) > 0
        assert values["headroom_jmx_scrape_failures_total"] == "0.0"
        query = "SELECT DISTINCT quota_key, user, client_id FROM headroom.quota_usage WHERE source = 'jmx' AND rate > 0"
        eventually(lambda: {*rows(serving.sql, query)}, lambda stored: stored >= {*BUCKETS})
