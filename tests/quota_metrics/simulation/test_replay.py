"""The replay against hand-computed cases of Kafka's rules, invariants for random loads, and the time that it skips."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from quota_metrics.simulation.group import ReplayedGroup
from quota_metrics.simulation.replay import GIVE_UP_MS, ReplayedClient, ReplayedQuota
from quota_metrics.simulation.usage import Recorded, recorded
from quota_metrics.windows import QuotaWindow

SECOND = 1000


def bucket(bound: float | None, *, fetches: bool = False, samples: int = 11) -> ReplayedQuota:
    made = ReplayedQuota(fetches=fetches, window=QuotaWindow(samples))
    made.bound = bound
    return made


def sender(*arrivals: tuple[int, int], fetches: bool = False) -> ReplayedClient:
    """(when, bytes), each at once."""
    made = ReplayedClient(fetches=fetches)
    for at_ms, size in arrivals:
        made.arrive(at_ms, at_ms + 1, size)
    return made


def test_vector_b_tenth_request_is_delayed() -> None:
    """1200 bytes a second at a bound of 1000: 800 ms at t=8000, 2000 ms at t=9000, so the tenth request is late."""
    load = sender(*((second * SECOND, 1200) for second in range(11)))
    sensor = bucket(1000)
    sensor.run([load], 8001)
    assert (load.longest_ms, load.muted_until_ms) == (800, 8800)
    sensor.run([load], 9001)
    assert (load.throttled_ms(11_000), load.longest_ms, load.muted_until_ms) == (2800, 2000, 11_000)
    sensor.run([load], 11_000)
    assert load.waiting_bytes == 1200
    sensor.run([load], 11_001)
    assert (load.waiting_bytes, load.delayed_bytes, load.longest_delay_ms) == (0, 1200, 1000)


def test_throttled_fetch_returns_no_bytes_and_is_not_charged() -> None:
    """25000 bytes are ready at a bound of 1000: the window holds 10000. The next 10000 have to wait until the first
    have left it, which takes two throttle times of ten seconds: after the first they are still in it."""
    load = sender((0, 25_000), fetches=True)
    sensor = bucket(1000, fetches=True)
    sensor.run([load], 1)
    assert (load.waiting_bytes, load.throttled_ms(10_000), load.longest_ms) == (15_000, 10_000, 10_000)
    sensor.run([load], 10_001)
    assert (load.waiting_bytes, load.throttled_ms(20_000), load.muted_until_ms) == (15_000, 20_000, 20_000)
    sensor.run([load], 20_001)
    assert (load.waiting_bytes, load.longest_delay_ms) == (5_000, 20_000)
    load = sender((0, 1_000), fetches=True)
    bucket(1000, fetches=True, samples=1).run([load], 2_000)
    assert (load.waiting_bytes, load.longest_ms) == (0, 100)  # 100 bytes each, as many as may come in 100 ms


def test_bytes_arriving_during_a_throttled_fetch_are_returned_together() -> None:
    load = sender((0, 9_000), (100, 2_000), (200, 2_000), fetches=True)
    sensor = bucket(1000, fetches=True)
    sensor.run([load], 101)
    assert (load.waiting_bytes, load.muted_until_ms) == (4_000, 1_000)  # 1000 too many, (1100-1000)/1000 of 10.1 s - 1
    sensor.run([load], 60_000)
    assert load.waiting_bytes == 0


def test_produce_requests_are_not_merged() -> None:
    """One full window, then three requests that arrive while the connection is muted: three throttle times."""
    load = sender((0, 11_000), (10, 100), (20, 100), (30, 100))
    sensor = bucket(1000)
    sensor.run([load], 1)
    assert load.muted_until_ms == 1_000
    sensor.run([load], 1_001)
    assert (load.waiting_bytes, load.muted_until_ms) == (200, 2_100)  # 11100 in what counts as ten seconds again
    sensor.run([load], 5_000)
    assert (load.waiting_bytes, load.throttled_ms(5_000)) == (0, 4_300)  # four throttle times


def test_clients_of_a_bucket_are_muted_individually() -> None:
    first, second = sender((0, 11_000)), sender((5, 1))
    bucket(1000).run([first, second], 6)
    assert first.muted_until_ms == 1_000
    assert 900 < second.muted_until_ms < 1_100
    assert second.waiting_bytes == 0


def test_only_producers_give_up() -> None:
    producer, consumer = sender((0, 5), (10, 7)), sender((0, 5), fetches=True)
    for load in (producer, consumer):
        load.give_up(GIVE_UP_MS + 5)
    assert (producer.given_up_bytes, producer.waiting_bytes) == (5, 7)
    assert (consumer.given_up_bytes, consumer.waiting_bytes) == (0, 5)


def test_backlog_queue_is_bounded() -> None:
    load = ReplayedClient(fetches=True)
    for second in range(20_000):
        load.arrive(second * SECOND, (second + 1) * SECOND, 1_001)
    assert load.waiting_bytes == 20_000 * 1_001
    assert load.due_ms() == 0
    assert load.next_bytes(20_000 * SECOND, 10**9) == load.waiting_bytes
    assert len(load._queue) <= 2_048


LOADS = st.lists(st.integers(0, 3_000) | st.sampled_from([0, 1_000, 5_000]), min_size=1, max_size=60)
BOUNDS = st.floats(200, 4_000)


def replayed(load: Sequence[int], bound: float | None, *, fetches: bool) -> tuple[ReplayedClient, float]:
    """The load, so many bytes each second: the client in the end, and its throttled ms."""
    client, sensor = ReplayedClient(fetches=fetches), bucket(bound, fetches=fetches)
    for second, size in enumerate(load, start=1):
        client.arrive((second - 1) * SECOND, second * SECOND, size)
        sensor.run([client], second * SECOND)
    return client, client.throttled_ms(len(load) * SECOND)


@settings(deadline=None)
@given(LOADS, st.booleans())
def test_random_load_without_limit_is_never_throttled(load: list[int], fetches: bool) -> None:
    for bound in (None, 1e15):
        client, throttled_ms = replayed(load, bound, fetches=fetches)
        assert (client.waiting_bytes, client.delayed_bytes, throttled_ms) == (0, 0, 0)


@settings(deadline=None)
@given(LOADS, BOUNDS, st.floats(1, 4), st.booleans())
def test_higher_limit_adds_at_most_one_throttle_time(
    load: list[int], bound: float, factor: float, fetches: bool
) -> None:
    """Throttled time grows by at most one throttle time, because Kafka's windows advance in steps."""
    _, throttled_ms = replayed(load, bound, fetches=fetches)
    _, with_more_ms = replayed(load, bound * factor, fetches=fetches)
    if throttled_ms == 0:
        assert with_more_ms == 0
    assert with_more_ms <= throttled_ms + 11_000


@settings(deadline=None)
@given(LOADS, BOUNDS, st.booleans())
def test_replay_conserves_bytes_and_respects_the_limit(load: list[int], bound: float, fetches: bool) -> None:
    """Bytes are conserved; no client is throttled longer than the load lasts; the broker accepts a full window at
    once, its limit from then on, and one more request with each throttle time."""
    client, throttled_ms = replayed(load, bound, fetches=fetches)
    through = sum(load) - client.waiting_bytes
    assert 0 <= through <= bound * (len(load) + 11) + max(load)
    assert throttled_ms <= len(load) * SECOND
    if client.waiting_bytes:
        assert throttled_ms > 0


WINDOW = QuotaWindow()
GROUP_LOADS = st.lists(st.sampled_from([10] * 20 + [500, 1000, 8000, 30_000]), min_size=1, max_size=200)


def usage(load: Sequence[int]) -> Recorded:
    count = len(load)
    return recorded([(at + 1) * SECOND for at in range(count)], [SECOND] * count, load, [0] * count, [0.0] * count)


def replayed_group(loads: Sequence[Sequence[int]], bound: float, *, fetches: bool) -> tuple[ReplayedGroup, list[int]]:
    """The group, and the throttled ms of each client."""
    group = ReplayedGroup([usage(load) for load in loads], [False] * len(loads), fetches=fetches, window=WINDOW)
    group.expect(bound)
    end_ms = max(map(len, loads)) * SECOND
    assert group.run([("shared", bound)] * len(loads), end_ms, 10**9)
    return group, [sum(throttled_ms) for throttled_ms in group.throttled_ms]


@settings(deadline=None)
@given(st.lists(GROUP_LOADS, min_size=1, max_size=3), st.floats(300, 6000), st.booleans())
def test_skipped_time_holds_no_throttling(loads: list[list[int]], bound: float, fetches: bool) -> None:
    _, throttled_ms = replayed_group(loads, bound, fetches=fetches)
    clients = [ReplayedClient(fetches=fetches) for _ in loads]
    quota = bucket(bound, fetches=fetches)
    end_ms = max(map(len, loads)) * SECOND
    for second in range(end_ms // SECOND):
        for client, load in zip(clients, loads, strict=True):
            if second < len(load):
                client.arrive(second * SECOND, (second + 1) * SECOND, load[second])
        quota.run(clients, (second + 1) * SECOND)
    assert any(throttled_ms) == any(client.throttled_ms(end_ms) for client in clients)


def test_only_the_time_around_a_burst_is_replayed() -> None:
    load = [10] * 20_000
    load[10_000:10_010] = [5_000] * 10
    group, (throttled_ms,) = replayed_group([load], 1000.0, fetches=False)
    assert throttled_ms > 10 * SECOND
    assert group.requests < 200 * 11
