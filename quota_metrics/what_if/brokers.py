"""What a replay has to know of the brokers, from rows of cluster_facts: quota windows, and classes that decide limits.

Sans-I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from exporters.clickhouse.client import Row
from quota_metrics.cluster.releases import before_3_8, release_of_text
from quota_metrics.simulation.broker_windows import BrokerWindow, BrokerWindows
from quota_metrics.windows import QuotaWindow

FACTS: Final = """
SELECT broker_id, toString(toUnixTimestamp64Milli(valid_from)) AS since_ms, release, quota_window_num AS samples,
       quota_window_size_ms AS window_ms, callback_class
FROM cluster_facts FINAL WHERE cluster = {cluster:String} ORDER BY broker_id, valid_from
"""


class GivenWindow(NamedTuple):
    """Instead of what the brokers have; None: as they have it."""

    samples: int | None = None
    window_ms: int | None = None

    def over(self, window: QuotaWindow) -> QuotaWindow:
        return window._replace(samples=self.samples or window.samples, window_ms=self.window_ms or window.window_ms)


class RecordedBrokers(NamedTuple):
    """`callback_classes`: client.quota.callback.class of brokers, which may ignore the configured quotas."""

    windows: BrokerWindows
    callback_classes: tuple[str, ...] = ()


def recorded_brokers(rows: Iterable[Row], from_ms: int, given: GivenWindow) -> RecordedBrokers:
    """`rows`: of FACTS. Replayed is what the brokers have now; a broker with another window at any time since `from_ms`
    has rates that say nothing of it."""
    of_broker: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        of_broker[row["broker_id"]].append(row)
    windows = {broker_id: _window(facts, from_ms, given) for broker_id, facts in of_broker.items()}
    classes = {facts[-1]["callback_class"] for facts in of_broker.values()} - {""}
    known = {broker_id: window for broker_id, window in windows.items() if window is not None}
    return RecordedBrokers(BrokerWindows(known, _replayed(QuotaWindow(), given)), tuple(sorted(classes)))


def _window(facts: list[Row], from_ms: int, given: GivenWindow) -> BrokerWindow | None:
    """None: the broker did not describe itself."""
    began = max((at for at, row in enumerate(facts) if int(row["since_ms"]) <= from_ms), default=0)
    seen = [window for row in facts[began:] if (window := _of_row(row)) is not None]
    if not seen:
        return None
    replayed = _replayed(seen[-1], given)
    return replayed._replace(is_recorded=set(seen) == {replayed.window})


def _replayed(window: QuotaWindow, given: GivenWindow) -> BrokerWindow:
    replayed = given.over(window)
    return BrokerWindow(replayed, is_recorded=replayed == window)


def _of_row(row: Row) -> QuotaWindow | None:
    samples, window_ms = int(row["samples"]), int(row["window_ms"])
    if samples < 2 or window_ms < 1:
        return None
    return QuotaWindow(samples, window_ms, before_3_8(release_of_text(row["release"])))
