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

    targets: tuple[JmxTarget, ...] = ()
    interval_ms: Millis = 5_000
    timeout_ms: Millis = 3_000  # of each target
    max_response_bytes: Bytes = 33_554_432


class QuotaMetricsConfig(Section):
    """Limit and usage of each client on /metrics."""

    enabled: bool = False
    max_series: int = Field(default=2_000, gt=0)


class QuotaConfig(Section):
    """The brokers' quota windows, and how often their quotas are read."""

    window_num: int = Field(default=11, ge=2)  # quota.window.num
    window_size_ms: Millis = 1_000  # quota.window.size.seconds
    refresh_ms: Millis = 2_000
    usage_interval_ms: Millis = 1_000
    jmx: JmxConfig = JmxConfig()
    metrics: QuotaMetricsConfig = QuotaMetricsConfig()
    callback: str | None = None  # module:Class, the cluster's ClientQuotaCallback in Python; None: Kafka's own rules
    callback_configs: dict[str, Any] = Field(default_factory=dict)  # what it is configured with, `node.id` besides

    @model_validator(mode="after")
    def _callback_is_used(self) -> QuotaConfig:
        if self.callback and not self.metrics.enabled:
            raise ValueError("a callback decides the limits of metrics.enabled, which is off")
        if self.callback and not _IMPORT_PATH.fullmatch(self.callback):
            raise ValueError(f"callback {self.callback!r} is not module:Class")
        return self
