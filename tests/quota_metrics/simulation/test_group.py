"""Time that the replay of a group skips holds no throttling."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from quota_metrics.simulation.group import ReplayedGroup
from quota_metrics.simulation.replay import ReplayedClient, ReplayedQuota
from quota_metrics.simulation.usage import Recorded, recorded
from quota_metrics.windows import QuotaWindow

SECOND = 1000
WINDOW = QuotaWindow()
LOADS = st.lists(st.sampled_from([10] * 20 + [500, 1000, 8000, 30_000]), min_size=1, max_size=200)


def usage(load: Sequence[int]) -> Recorded:
    count = len(load)
    return recorded([(at + 1) * SECOND for at in range(count)], [SECOND] * count, load, [0] * count, [0.0] * count)


def replayed(loads: Sequence[Sequence[int]], bound: float, *, fetches: bool) -> tuple[ReplayedGroup, list[int]]:
    """The group, and the throttled ms of each client."""
    group = ReplayedGroup([usage(load) for load in loads], fetches=fetches, window=WINDOW)
    group.expect(bound)
    end_ms = max(map(len, loads)) * SECOND
    assert group.run([("shared", bound)] * len(loads), end_ms, 10**9)
    return group, [sum(spent.throttled_ms) for spent in group.spent()]


def without_skipping(loads: Sequence[Sequence[int]], bound: float, *, fetches: bool) -> list[int]:
    clients = [ReplayedClient(fetches=fetches) for _ in loads]
    quota = ReplayedQuota(fetches=fetches, window=WINDOW)
    quota.bound = bound
    end_ms = max(map(len, loads)) * SECOND
    for second in range(end_ms // SECOND):
        for client, load in zip(clients, loads, strict=True):
            if second < len(load):
                client.arrive(second * SECOND, (second + 1) * SECOND, load[second])
        quota.run(clients, (second + 1) * SECOND)
    return [client.throttled_ms(end_ms) for client in clients]


@settings(deadline=None)
@given(st.lists(LOADS, min_size=1, max_size=3), st.floats(300, 6000), st.booleans())
def test_skipped_time_holds_no_throttling(loads: list[list[int]], bound: float, fetches: bool) -> None:
    _, throttled_ms = replayed(loads, bound, fetches=fetches)
    assert any(throttled_ms) == any(without_skipping(loads, bound, fetches=fetches))


def test_only_the_time_around_a_burst_is_replayed() -> None:
    load = [10] * 20_000
    load[10_000:10_010] = [5_000] * 10
    group, (throttled_ms,) = replayed([load], 1000.0, fetches=False)
    assert throttled_ms > 10 * SECOND
    assert group.requests < 200 * 11
