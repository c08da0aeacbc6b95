"""The cluster's facts in `headroom serve`: read again and again, compared with the settings, shown.

A setting overrides a fact; where the two differ, a warning says so.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import structlog

from exporters import self_metrics as catalogue
from exporters.model import CONTROLLER, StoredFacts
from exporters.self_metrics import SelfMetric, Values
from headroom.clock import now_ms
from headroom.config.settings import QuotaConfig
from quota_metrics.cluster.document import document, stored_facts
from quota_metrics.cluster.facts import CALLBACK, QUOTA_WINDOW, TELEMETRY_MAX_BYTES, ClusterFacts, release_text
from quota_metrics.config.entities import Rules, entity_text, is_kafkas, text
from quota_metrics.config.timeline import has_a_row
from quota_metrics.windows import QuotaWindow

log = structlog.get_logger(__name__)

_KAFKAS_DEFAULT = QuotaWindow()


class FactsInForce:
    """The latest facts. `read` raises ClusterError; `store` gets rows of cluster_facts (OSError, SpoolFull)."""

    def __init__(
        self,
        config: QuotaConfig,
        cluster: str,
        read: Callable[[], Awaitable[ClusterFacts]],
        store: Callable[[Sequence[StoredFacts]], None],
    ) -> None:
        self.facts = ClusterFacts()
        self.read_at_ms: int | None = None
        self._config = config
        self._cluster = cluster
        self._read = read
        self._store = store
        self._unstored: list[StoredFacts] = []
        self._windows: dict[int, QuotaWindow] = {}
        self._callbacks: dict[int, str] = {}
        self._logged: set[str] = set()
        self._foreign: list[str] = []
        self._unrecorded: list[str] = []

    async def step(self) -> None:
        """Reads all facts once. Raises ClusterError, OSError, SpoolFull; the next step stores what was not stored."""
        facts = (await self._read()).completed_by(self.facts)
        self.read_at_ms = now_ms()
        earlier, self.facts = self.facts, facts
        if facts != earlier:
            self._windows.clear()
            self._unstored += self._rows(earlier, self.read_at_ms)
            self._callbacks = {broker.broker_id: broker.callback_class for broker in facts.brokers}
            self._log()
        if self._unstored:
            self._store(self._unstored)
            self._unstored = []

    def window_at(self, broker_id: int) -> QuotaWindow:
        """The window in force at a broker or the CONTROLLER: the settings, which are of brokers, else its own, else
        Kafka's default."""
        window = self._windows.get(broker_id)
        if window is None:
            own = self.facts.window_at(broker_id)
            window = own or _KAFKAS_DEFAULT
            if broker_id != CONTROLLER:
                samples, window_ms = self._config.window_num, self._config.window_size_ms
                window = window._replace(
                    samples=samples or window.samples,
                    window_ms=window_ms or window.window_ms,
                    is_assumed=(own or samples or window_ms) is None
                    and any(broker.lacks_window for broker in self.facts.brokers),
                )
            self._windows[broker_id] = window
        return window

    def callback_at(self, broker_id: int) -> str:
        """A broker's client.quota.callback.class, of the CONTROLLER that of the brokers; empty: Kafka's own rules
        decide, as far as is known."""
        if broker_id == CONTROLLER:
            return next(iter(self.facts.callback_classes), "")
        return self._callbacks.get(broker_id, "")

    def follow(self, config: QuotaConfig) -> None:
        """Takes over changed settings of the window; the next step stores them."""
        self._config = config
        self._windows.clear()
        self._unstored += self._rows(ClusterFacts(), now_ms())
        self._log()

    def follow_rules(self, rules: Rules) -> None:
        """The cluster's quotas, of which other vendors' are remarked, and those that the store cannot record."""
        foreign = sorted(entity_text(entity) for entity in rules if not is_kafkas(entity))
        unrecorded = sorted(text(entity) for entity in rules if is_kafkas(entity) and not has_a_row(entity))
        if (foreign, unrecorded) != (self._foreign, self._unrecorded):
            self._foreign, self._unrecorded = foreign, unrecorded
            self._log()

    def document(self) -> dict[str, Any]:
        """As JSON, with the warnings of `differences`."""
        return {
            "cluster": self._cluster,
            "read_at_ms": self.read_at_ms,
            "not_understood": self._foreign,
            **document(self.facts, self.differences()),
        }

    def differences(self) -> Iterator[str]:
        """Where a setting overrides what the cluster has, and quotas that are not understood."""
        for entity in self._foreign:
            yield f"the quota of {entity} is not understood, and may apply: limits that it may change are unknown"
        for entity in self._unrecorded:
            yield f"the quota of {entity} holds, but quota_limits has no row of it: there its name is a default"
        for broker in self.facts.brokers:
            window, used = broker.quota_window, self.window_at(broker.broker_id)
            if window is not None and window != used:
                yield (
                    f"quotas.window_num and quotas.window_size_ms say {used.samples} x {used.window_ms} ms, but broker"
                    f" {broker.broker_id} has {window.samples} x {window.window_ms} ms: rates and bursts are wrong"
                )
        if self._config.callback and self.facts.brokers and not self.facts.callback_classes:
            yield (
                f"quotas.callback is {self._config.callback}, but no broker is known to have a"
                " client.quota.callback.class"
            )

    def readings(self) -> dict[SelfMetric, Values]:
        facts = self.facts
        cluster: tuple[str, ...] = (
            self._cluster,
            release_text(facts.release),
            release_text(facts.metadata_version),
        )
        shown = (*QUOTA_WINDOW, CALLBACK, TELEMETRY_MAX_BYTES)
        brokers: dict[tuple[str, ...], float] = {
            (
                self._cluster,
                str(broker.broker_id),
                release_text(broker.release),
                *(broker.configs.get(name, "") for name in shown),
            ): 1.0
            for broker in facts.brokers
        }
        return {
            catalogue.CLUSTER_INFO: {cluster: 1.0},
            catalogue.BROKER_INFO: brokers,
            catalogue.FACTS_UNREAD: len(facts.unread),
            catalogue.STALE_THROTTLES: sum(bool(throttle.stale) for throttle in facts.replication_throttles),
            catalogue.CLUSTER_REMARKS: len(list(facts.remarks())) + len(list(self.differences())),
        }

    def _rows(self, earlier: ClusterFacts, valid_from_ms: int) -> list[StoredFacts]:
        """Rows of the facts that differ from `earlier`, with the windows in force, which jobs and what-if use, too."""
        rows = stored_facts(self.facts, earlier, self._cluster, valid_from_ms)
        if self._config.window_num is None and self._config.window_size_ms is None:
            return rows  # 0 where it is not known
        in_force = ((row, self.window_at(row.broker_id)) for row in rows)
        return [
            row._replace(quota_window_num=window.samples, quota_window_size_ms=window.window_ms)
            for row, window in in_force
        ]

    def _log(self) -> None:
        lines = [*self.facts.remarks(), *self.differences()]
        lines += [f"{fact.what} cannot be read ({fact.error}): {fact.means}" for fact in self.facts.unread]
        for line in lines:
            if line not in self._logged:
                log.warning("the cluster is not as Kafka's defaults", fact=line)
        self._logged = set(lines)
