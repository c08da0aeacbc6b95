"""Settings of quotas: the brokers' windows, their JMX agents, quotas on /metrics."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from headroom.config.types import Bytes, Count, Millis, Section, parse_http_url
from quota_metrics.jmx.scrape import Agent
from quota_metrics.measure.usage_meter import MAX_CLIENTS
from quota_metrics.verdict.thresholds import Thresholds

_IMPORT_PATH = re.compile(r"[^\d\W]\w*(\.[^\d\W]\w*)*:[^\d\W]\w*")


class JmxTarget(Section):
    """Where one broker exposes its quota sensors."""

    broker_id: int = Field(ge=0)
    agent: Agent
    url: Annotated[str, AfterValidator(parse_http_url)]


class JmxConfig(Section):
    """Usage as the brokers themselves measure it."""

    targets: tuple[JmxTarget, ...] = ()
    """One {broker_id, agent: prometheus or jolokia, url} per broker; empty: off"""
    interval_ms: Millis = 5_000
    """Time between two scrapes"""
    timeout_ms: Millis = 3_000
    """Timeout of a scrape of one target"""
    max_response_bytes: Bytes = 33_554_432
    """Longer responses are not read"""


class QuotaMetricsConfig(Section):
    """Limit and usage of each client on /metrics."""

    enabled: bool = False
    """Whether /metrics has kafka_client_* series"""
    max_series: Count = 4_000
    """Maximum number of series, nine a client; the worst level comes first"""


class TopicsConfig(Section):
    """Which topics clients use their quotas for."""

    sample: float = Field(default=0.0, ge=0, le=1)
    """Share of the Produce requests and Fetch responses whose topics are read, as 0.01; 0: off"""


_LEVELS = Thresholds()


class LevelsConfig(Section):
    """From which share of its limit on a client is at a level. Kept in the store for jobs; can be reloaded."""

    watch: float = _LEVELS.watch
    """Utilisation from which a client is at `watch`; can be reloaded"""
    warn: float = _LEVELS.warn
    """The same for `warn`; can be reloaded"""
    critical: float = _LEVELS.critical
    """The same for `critical`; can be reloaded"""
    muted_share: float = _LEVELS.muted_share
    """Muted share of a window from which a client is `throttled`; can be reloaded"""

    every_ms: Millis = Field(default=10_000, ge=1_000)
    """Time between computations of the last 60 seconds, which pages show; they take at most an eighth of the time"""

    @property
    def thresholds(self) -> Thresholds:
        return Thresholds(**self.model_dump(include=set(Thresholds._fields)))

    @model_validator(mode="after")
    def _do_not_fall(self) -> Self:
        if errors := self.thresholds.errors():
            raise ValueError("; ".join(errors))
        return self


class QuotaConfig(Section):
    """The brokers' quota windows, and how often their quotas are read."""

    window_num: int | None = Field(default=None, ge=2)
    """Instead of the brokers' quota.window.num, which is read from each of them; can be reloaded"""
    window_size_ms: Millis | None = None
    """Instead of the brokers' quota.window.size.seconds, in ms; can be reloaded"""
    refresh_ms: Millis = 2_000
    """Time between two readings of the cluster's quotas"""
    usage_interval_ms: Millis = Field(default=1_000, le=10_000)
    """Interval of rows in quota_usage; what a broker's window of 11 s does not cover would be lost"""
    max_clients: Count = MAX_CLIENTS
    """Clients whose usage is measured at a time, one for each quota and broker that they use; a further one takes the
    place of one whose payer (a principal, or a source network) holds most"""
    jmx: JmxConfig = JmxConfig()
    metrics: QuotaMetricsConfig = QuotaMetricsConfig()
    topics: TopicsConfig = TopicsConfig()
    callback: str | None = None
    """module:function that answers for the brokers' client.quota.callback.class: docs/quotas.md; none: Kafka's own
    rules"""

    @model_validator(mode="after")
    def _callback_names_a_function(self) -> Self:
        if self.callback and not _IMPORT_PATH.fullmatch(self.callback):
            raise ValueError(f"callback {self.callback!r} is not module:function")
        return self
