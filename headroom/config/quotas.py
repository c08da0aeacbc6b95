"""Settings of quotas: the brokers' windows, their JMX agents, quotas on /metrics."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from headroom.config.types import Bytes, Millis, Section, parse_http_url
from quota_metrics.jmx.scrape import Agent

_IMPORT_PATH = re.compile(r"[^\d\W]\w*(\.[^\d\W]\w*)*:[^\d\W]\w*")


class JmxTarget(Section):
    """Where one broker exposes its quota sensors."""

    broker_id: int = Field(ge=0)
    agent: Agent
    url: Annotated[str, AfterValidator(parse_http_url)]


class JmxConfig(Section):
    """Usage as the brokers themselves measure it."""

    targets: tuple[JmxTarget, ...] = ()  # one {broker_id, agent: prometheus or jolokia, url} per broker; empty: off
    interval_ms: Millis = 5_000  # time between two scrapes
    timeout_ms: Millis = 3_000  # timeout of a scrape of one target
    max_response_bytes: Bytes = 33_554_432  # longer responses are not read


class QuotaMetricsConfig(Section):
    """Limit and usage of each client on /metrics."""

    enabled: bool = False  # whether /metrics has kafka_client_* series
    max_series: int = Field(default=2_000, gt=0)  # maximum number of series; clients closest to their limits come first


class QuotaConfig(Section):
    """The brokers' quota windows, and how often their quotas are read."""

    window_num: int = Field(default=11, ge=2)  # the brokers' quota.window.num
    window_size_ms: Millis = 1_000  # the brokers' quota.window.size.seconds, in ms
    refresh_ms: Millis = 2_000  # time between two readings of the cluster's quotas
    usage_interval_ms: Millis = 1_000  # interval of rows in quota_usage
    jmx: JmxConfig = JmxConfig()
    metrics: QuotaMetricsConfig = QuotaMetricsConfig()
    # module:Class of a Python port of the cluster's ClientQuotaCallback; None: Kafka's own rules
    callback: str | None = None
    callback_configs: dict[str, Any] = Field(default_factory=dict)  # the callback's settings; `node.id` is added

    @model_validator(mode="after")
    def _callback_is_used(self) -> QuotaConfig:
        if self.callback and not self.metrics.enabled:
            raise ValueError("a callback decides the limits of metrics.enabled, which is off")
        if self.callback and not _IMPORT_PATH.fullmatch(self.callback):
            raise ValueError(f"callback {self.callback!r} is not module:Class")
        return self
