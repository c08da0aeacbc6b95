"""kafka_client_* on /metrics: values, the budget and the series left out; which callback applies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest

from exporters.model import Exchange, UsageSample
from headroom.config.settings import ConfigError, QuotaConfig, QuotaMetricsConfig
from headroom.config.sources import load
from headroom.server.metrics import SelfMetrics
from headroom.server.quotas.client_quotas import ClientQuotas
from headroom.server.quotas.cluster_quotas import ClusterQuotas
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.measure.callbacks import CallbackError, DefaultQuotaCallback
from quota_metrics.measure.usage_meter import UsageMeter
from quota_metrics.windows import QuotaWindow

PRODUCER = "producer_byte_rate"
RULES: Rules = {entity_of({"client-id": None}): {PRODUCER: 100.0}}


def sample(client_id: str, rate: float, **more: Any) -> UsageSample:
    return UsageSample("c", PRODUCER, 0, "alice", client_id, "", 1, 0, rate, 0.0, 0, "gateway")._replace(**more)


def page(max_series: int = 2000, rules: Rules = RULES, now_ms: Callable[[], int] = lambda: 1 << 40) -> ClientQuotas:
    quotas = ClusterQuotas(QuotaConfig())
    quotas.configure(rules)
    return ClientQuotas("c", quotas.at, lambda _: QuotaWindow(), {1: 1600.0}, max_series, now_ms)


def text(clients: ClientQuotas) -> list[str]:
    exposed = generate_latest(SelfMetrics(clients.readings).snapshot()).decode()
    return [line for line in exposed.splitlines() if not line.startswith("#")]


def test_client_series_have_limit_usage_ratio_and_throttling() -> None:
    clients = page()
    clients.measured([sample("app", 85.0, throttle_ms=250.0)])
    labels = '{client_id="app",kafka_cluster="c",quota_type="Produce",user="alice"}'
    assert text(clients) == [
        f"kafka_client_quota_limit{labels} 100.0",
        f"kafka_client_quota_usage{labels} 85.0",
        f"kafka_client_quota_utilization_ratio{labels} 0.85",
        f"kafka_client_throttle_seconds{labels} 0.25",
        "headroom_quota_series_left_out_total 0.0",
    ]


def test_limit_that_a_class_decides_is_not_shown() -> None:
    clients = page()
    clients.measured([sample("app", 85.0, throttle_ms=250.0, decided_by="com.example.Quotas")])
    names = {line.partition("{")[0] for line in text(clients)}
    assert names == {
        "kafka_client_quota_usage",
        "kafka_client_throttle_seconds",
        "headroom_quota_series_left_out_total 0.0",
    }


def test_client_without_quota_has_infinite_limit() -> None:
    clients = page(rules={})
    clients.measured([sample("app", 85.0)])
    values = {line.partition("{")[0]: line.rpartition(" ")[2] for line in text(clients)}
    assert (values["kafka_client_quota_limit"], values["kafka_client_quota_utilization_ratio"]) == ("+Inf", "NaN")


def test_throttling_is_shown_for_at_least_half_a_minute() -> None:
    clients = page()
    clients.measured([sample("app", 85.0, throttle_ms=250.0)])
    shown = []
    for second in range(1, 70):
        clients.measured([sample("app", 85.0, ts_ms=second * 1000)])
        shown.append(any(line.endswith(" 0.25") for line in text(clients)))
    assert 30 <= shown.index(False) < 60


def test_muted_client_is_shown_in_every_scrape() -> None:
    """A consumer that is throttled 90 s sends nothing meanwhile; `for: 1m` needs it all the time."""
    now = [1_000]
    clients, meter = page(now_ms=lambda: now[0]), UsageMeter("c")
    meter.exchange(Exchange("alice", "app", "", 1, 1, 100, 5_000, 90_000, 1_000))
    for now[0] in range(2_000, 92_000, 1_000):
        clients.measured(meter.samples(now[0]))
        assert next(line for line in text(clients) if "throttle_seconds" in line).endswith(" 90.0")
    for now[0] in range(92_000, 152_000, 1_000):
        clients.measured(meter.samples(now[0]))
    assert not [line for line in text(clients) if "throttle_seconds" in line]


def test_repeated_short_throttles_make_the_worst_broker() -> None:
    now = [60_000]
    clients = page(now_ms=lambda: now[0])
    for muted_ms, rate in ((59, 50.0), (60, 50.0)):
        for _ in range(10):
            now[0] += 1_000
            throttled = sample("app", rate, ts_ms=now[0], throttle_ms=5.0, muted_ms=muted_ms)
            clients.measured([throttled, sample("app", 99.0, ts_ms=now[0], broker_id=2)])
        worst = next(line for line in text(clients) if "utilization" in line).rpartition(" ")[2]
        assert worst == ("0.99" if muted_ms == 59 else "0.5")
        now[0] += 60_000


def test_series_budget_prefers_clients_closest_to_their_limit() -> None:
    clients = page(max_series=9)
    clients.measured([sample(f"app-{n}", float(n)) for n in range(10)] + [sample("x" * 300, 99.0)])
    shown = text(clients)
    assert [line for line in shown if "usage" in line] == [
        f'kafka_client_quota_usage{{client_id="app-{n}",kafka_cluster="c",quota_type="Produce",user="alice"}} {n}.0'
        for n in (9, 8)
    ]
    assert shown[-1] == "headroom_quota_series_left_out_total 36.0"
    assert text(clients)[-1] == "headroom_quota_series_left_out_total 72.0"


def test_broker_values_are_shown_until_a_scrape_fails() -> None:
    clients = page()
    clients.scraped(1, [sample("", 8.0, user="bob", quota_key="request_percentage", source="jmx")])
    assert len(text(clients)) == 6
    assert any(
        line.startswith("kafka_client_request_capacity_ratio") and line.endswith(" 0.005") for line in text(clients)
    )
    clients.scraped(1, [])
    assert text(clients) == ["headroom_quota_series_left_out_total 0.0"]


class ByNode(DefaultQuotaCallback):
    """The limit is ten times the node's id; node 13 is refused."""

    def configure(self, configs: Any) -> None:
        self.node = int(configs["node.id"])
        if self.node == 13:
            raise ValueError("unlucky")

    def quota_limit(self, quota_type: Any, metric_tags: Any) -> float:
        return self.node * 10.0


def test_callback_applies_per_broker_and_its_faults_are_counted() -> None:
    config = QuotaConfig(metrics=QuotaMetricsConfig(enabled=True), callback=f"{__name__}:ByNode")
    quotas = ClusterQuotas(config)
    assert [quotas.at(node).quota(PRODUCER, "alice", "app").limit for node in (1, 2)] == [10.0, 20.0]
    with pytest.raises(CallbackError, match="unlucky"):
        quotas.open(13)
    quotas.configure(RULES)
    assert quotas.at(13).quota(PRODUCER, "alice", "app").limit == 100.0
    assert quotas.faults() == {"load": 1.0}


def test_metrics_are_off_by_default_and_required_by_a_callback(tmp_path: Path) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_text(
        "quotas: {callback: 'a:B', jmx: {targets: [{broker_id: 1, agent: prometheus, url: 'ftp://x'},"
        " {broker_id: -1, agent: jolokia, url: 'http://h:8778/jolokia/'}]}}"
    )
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert len(caught.value.faults) == 2  # fields of a section are validated before relations between them
    file.write_text("quotas: {callback: 'a:B'}")
    with pytest.raises(ConfigError, match=r"metrics\.enabled, which is off"):
        load(file, {})
    assert not QuotaConfig().metrics.enabled
