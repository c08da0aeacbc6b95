"""What a replay has to know of the brokers, from rows of cluster_facts: quota windows, and classes that decide limits.

Sans-I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from exporters.clickhouse.client import Row
from quota_metrics.cluster.releases import before_3_8, release_of_text
from quota_metrics.simulation.usage import BrokerWindow, BrokerWindows
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


def recorded_brokers(rows: Iterable[Row], from_ms: int, override: GivenWindow) -> RecordedBrokers:
    """`rows`: of FACTS. The replay uses the windows that the brokers have now.

    If a broker had another window at any time since `from_ms`, its recorded rates do not apply.
    """
    of_broker: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        of_broker[row["broker_id"]].append(row)
    classes = {facts[-1]["callback_class"] for facts in of_broker.values()} - {""}
    windows = {}
    for broker_id, facts in of_broker.items():
        began = max((at for at, row in enumerate(facts) if int(row["since_ms"]) <= from_ms), default=0)
        recorded = [
            QuotaWindow(int(row["samples"]), int(row["window_ms"]), before_3_8(release_of_text(row["release"])))
            for row in facts[began:]
            if int(row["samples"]) >= 2 and int(row["window_ms"]) >= 1
        ]
        if recorded:  # otherwise the broker did not describe itself
            replayed = override.over(recorded[-1])
            windows[broker_id] = BrokerWindow(replayed, is_recorded=set(recorded) == {replayed})
    default = override.over(QuotaWindow())
    return RecordedBrokers(
        BrokerWindows(windows, BrokerWindow(default, is_recorded=default == QuotaWindow())), tuple(sorted(classes))
    )
