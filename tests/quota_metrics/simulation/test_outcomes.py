"""The effect of a quota change on a recording: who is affected, throttled or freed, and why; the brokers' windows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.model import QuotaLimit, UsageSample
from quota_metrics.config.entities import QuotaAlteration, entity_of
from quota_metrics.measure.usage_meter import FETCH, PRODUCE
from quota_metrics.simulation.outcomes import ClientOutcome, OutcomeKind, Seen, Simulation, reason, verdict, worst_first
from quota_metrics.simulation.usage import BrokerWindow, BrokerWindows, ClientAtBroker
from quota_metrics.simulation.usage import recorded as as_columns
from quota_metrics.what_if.recording import recorded_brokers
from quota_metrics.windows import QuotaWindow
from tests.kit.recordings import CONSUMER, PRODUCER, SECOND, START_MS, Used, columns, limit, recorded


def change(entity: Mapping[str, str | None], **values: float | None) -> QuotaAlteration:
    return QuotaAlteration(entity_of(entity), values)


def replayed(window: QuotaWindow) -> BrokerWindows:
    """At all brokers, whose recorded rates are of Kafka's default."""
    return BrokerWindows({1: BrokerWindow(window, window == QuotaWindow())})


def question(
    history: Sequence[QuotaLimit],
    alteration: QuotaAlteration,
    rows: Sequence[UsageSample],
    window: QuotaWindow = QuotaWindow(),
) -> Simulation:
    most: dict[ClientAtBroker, Seen] = {}
    for row in rows:
        client = ClientAtBroker(row.quota_key, row.user, row.client_id, row.broker_id)
        so_far = most.get(client, Seen(client, 0.0, 0))
        most[client] = Seen(client, max(so_far.rate_max, row.rate), max(so_far.bytes_max, row.bytes))
    seen = list(most.values())
    return Simulation(history, [alteration], seen, from_ms=START_MS, to_ms=rows[-1].ts_ms, windows=replayed(window))


def replay(asking: Simulation, rows: Sequence[UsageSample]) -> None:
    usage = columns(rows)
    for group in asking.groups:
        asking.replay(group, usage)
    asking.throttled(usage)


def asked(history: Sequence[QuotaLimit], alteration: QuotaAlteration, *loads: Used) -> dict[str, ClientOutcome]:
    rows = recorded(*loads)
    asking = question(history, alteration, rows)
    replay(asking, rows)
    return {outcome.client.client_id: outcome for outcome in asking.outcomes()}


def test_throttle_times_of_rows_without_an_interval_that_overlap_count_once() -> None:
    at = [START_MS + second * SECOND for second in (1, 2, 3, 9)]
    of_bare = as_columns(at, [0] * 4, [0] * 4, [0] * 4, [2500.0, 100.0, 0.0, 400.0])
    assert of_bare.muted_ms.tolist() == [2500, 0, 0, 400]
    assert (of_bare.ts_ms - of_bare.start_ms).tolist() == [SECOND] * 4  # the last one follows a pause


def test_only_usage_above_the_limit_is_throttled() -> None:
    """2000 B/s at 1000: the window of ten seconds is full after five. 500 B/s: never."""
    loads = Used("u", "much", [2000] * 60), Used("u", "little", [500] * 60)
    answer = asked([], change({"client-id": None}, producer_byte_rate=1000), *loads)
    much, little = answer["much"], answer["little"]
    assert (verdict(much), verdict(little)) == (OutcomeKind.NEWLY, OutcomeKind.UNCHANGED)
    assert much.after.throttled_ms == pytest.approx(55 * SECOND, abs=SECOND)
    assert much.waiting_bytes == pytest.approx(60 * 2000 - 10_000 - 60 * 1000, abs=10_000)
    assert reason(much).startswith("comes to 1000 bytes/s of {client-id=<default>}; ")
    assert reason(little) == f"never above {little.peak:.0%} of 1000 bytes/s of {{client-id=<default>}}"
    assert 0.5 <= little.peak < 0.62
    assert little.after.throttled_ms == 0


def test_burst_is_delayed_and_then_drained() -> None:
    """10 s of 3000 B/s at 1000, then nothing: 10000 bytes at once, 20000 more at 1000 B/s."""
    (burst,) = asked(
        [], change({"user": "u"}, producer_byte_rate=1000), Used("u", "c", [3000] * 10 + [10] * 50)
    ).values()
    assert burst.after.throttled_ms == pytest.approx(20 * SECOND, abs=4 * SECOND)
    assert burst.waiting_bytes == 0
    assert 9 * SECOND < burst.delay_ms_max < 20 * SECOND


def test_only_clients_that_may_be_throttled_are_replayed() -> None:
    rows = recorded(Used("u", "much", [2000] * 20), Used("u", "little", [500] * 20), Used("v", "other", [9000] * 20))
    asking = question([], change({"user": "u", "client-id": None}, producer_byte_rate=1000), rows)
    assert {(client.user, client.client_id) for group in asking.groups for client in group} == {("u", "much")}


def test_consumer_quota_does_not_affect_producers() -> None:
    consumer, producer = Used("u", "c", [2000] * 60, api_key=FETCH), Used("u", "p", [2000] * 60)
    answer = asked([], change({"user": "u"}, consumer_byte_rate=1000), consumer, producer)
    assert verdict(answer["c"]) is OutcomeKind.NEWLY
    assert not answer["p"].affected
    assert reason(answer["p"]) == "the change does not affect it"
    assert answer["c"].after.throttle_ms_max > 5 * SECOND  # the backlog is fetched together


def test_user_limit_is_shared_by_its_clients() -> None:
    """Each client alone would stay below 1000 B/s."""
    loads = Used("alice", "a", [600] * 60), Used("alice", "b", [600] * 60), Used("bob", "a2", [600] * 60)
    together = asked([], change({"user": None}, producer_byte_rate=1000), *loads)
    assert [verdict(together[name]) for name in ("a", "b", "a2")] == [
        OutcomeKind.NEWLY,
        OutcomeKind.NEWLY,
        OutcomeKind.UNCHANGED,
    ]
    assert together["a"].shared_with == 1
    assert "that it shares with 1 more" in reason(together["a"])
    apart = asked([], change({"user": None, "client-id": None}, producer_byte_rate=1000), *loads)
    assert {verdict(outcome) for outcome in apart.values()} == {OutcomeKind.UNCHANGED}


def test_throttling_of_a_shared_limit_is_uneven_between_consumers() -> None:
    """As on a real broker one client starves, and no recording shows which one."""
    loads = [Used("u", name, [700] * 60, api_key=FETCH) for name in ("one", "two")]
    answer = asked([], change({"user": "u"}, consumer_byte_rate=1200), *loads)
    lucky, starved = sorted(answer.values(), key=lambda outcome: outcome.after.throttled_ms)
    assert starved.after.throttled_ms > 40 * SECOND
    assert lucky.after.throttled_ms < 10 * SECOND
    assert all("are throttled is random" in reason(outcome) for outcome in answer.values())


def test_client_leaving_a_shared_limit_frees_the_others() -> None:
    history = [limit("alice", "", 1000.0)]
    loads = Used("alice", "a", [700] * 60, throttle_ms=300), Used("alice", "b", [300] * 60, throttle_ms=400)
    answer = asked(history, change({"user": "alice", "client-id": "a"}, producer_byte_rate=5000), *loads)
    assert {verdict(outcome) for outcome in answer.values()} == {OutcomeKind.FREED}
    assert answer["b"].before.rule is not None
    assert answer["b"].before.rule == answer["b"].after.rule
    assert answer["b"].before.throttled_ms == pytest.approx(60 * 400)


def test_brokers_have_separate_windows() -> None:
    loads = [Used("u", "c", [700] * 60, broker_id=broker_id) for broker_id in (1, 2)]
    rows = recorded(*loads)
    asking = question([], change({"user": "u"}, producer_byte_rate=1000), rows)
    replay(asking, rows)
    assert [verdict(outcome) for outcome in asking.outcomes()] == [OutcomeKind.UNCHANGED] * 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "no quota applies any more"),
        (4000.0, "it would use all of the new limit, or an unknown part of it"),
    ],
)
def test_higher_or_removed_limit_frees_the_client(value: float | None, said: str) -> None:
    load = Used("u", "c", [1000] * 30, 500)
    (freed,) = asked([limit("", "c", 1000.0)], change({"client-id": "c"}, producer_byte_rate=value), load).values()
    assert verdict(freed) is OutcomeKind.FREED
    assert reason(freed).endswith(said)
    assert (freed.before.throttled_ms, freed.after.throttled_ms) == (30 * 500, 0)


def test_lower_limit_throttles_at_least_as_long() -> None:
    """Just below the old limit: the recorded usage almost fits, the demand is unknown."""
    (still,) = asked(
        [limit("", "c", 1000.0)], change({"client-id": "c"}, producer_byte_rate=999), Used("u", "c", [1000] * 30, 900)
    ).values()
    assert verdict(still) is OutcomeKind.STILL
    assert still.after.throttled_ms >= still.before.throttled_ms == 30 * 900
    assert "at least this long" in reason(still)


def test_throttling_by_another_quota_remains() -> None:
    """Without a byte rate it was the request percentage."""
    (still,) = asked([], change({"client-id": "c"}, producer_byte_rate=1e9), Used("u", "c", [1000] * 30, 500)).values()
    assert verdict(still) is OutcomeKind.STILL


def test_overridden_limit_affects_nobody() -> None:
    (outcome,) = asked(
        [limit("u", "", 5000.0)], change({"client-id": "c"}, producer_byte_rate=10), Used("u", "c", [1000] * 30)
    ).values()
    assert not outcome.affected
    assert outcome.after.rule is not None
    assert outcome.after.rule.value == 5000


def test_limits_apply_from_their_timestamp() -> None:
    """The user's own limit is set after 30 s and overrides the limit in question."""
    history = [limit("u", "", 1e6, since_s=30)]
    (outcome,) = asked(history, change({"user": None}, producer_byte_rate=1000), Used("u", "c", [2000] * 60)).values()
    assert outcome.after.throttled_ms == pytest.approx(25 * SECOND, abs=2 * SECOND)
    assert outcome.after.rule is not None
    assert outcome.after.rule.value == 1e6
    assert outcome.waiting_bytes == 0


def test_backlog_drains_after_the_last_row() -> None:
    """After 10 s of 5000 B/s at 1000 nothing more is recorded: 50000 bytes take a window and 40 s, and a fifth more, as
    Kafka's windows go down in steps."""
    rows = recorded(Used("u", "c", [5000] * 10))
    alteration = change({"user": "u"}, producer_byte_rate=1000)
    seen = [Seen(ClientAtBroker(PRODUCER, "u", "c", 1), 5000.0, 5000)]
    asking = Simulation([], [alteration], seen, from_ms=START_MS, to_ms=START_MS + 300 * SECOND)
    replay(asking, rows)
    (outcome,) = asking.outcomes()
    assert outcome.waiting_bytes == 0
    assert outcome.after.throttled_ms == pytest.approx(44 * SECOND, abs=5 * SECOND)


@pytest.mark.parametrize(("client_id", "fails"), [("c", True), ("connector-producer-pg-0", False)])
def test_records_fail_after_delivery_timeout(client_id: str, fails: bool) -> None:
    (outcome,) = asked([], change({"user": "u"}, producer_byte_rate=100), Used("u", client_id, [1000] * 200)).values()
    assert (outcome.given_up_bytes > 50_000, outcome.waiting_bytes > 150_000) == (fails, not fails)
    assert ("wait over 120 s, Java's delivery.timeout.ms, and fail" in reason(outcome)) == fails


def test_usage_of_unseen_clients_is_ignored() -> None:
    rows = recorded(Used("u", "c", [1000] * 5), Used("u", "late", [1000] * 5))
    seen = [Seen(ClientAtBroker(PRODUCER, "u", "c", 1), 1000.0, 1000)]
    asking = Simulation([], [change({"user": "u"}, producer_byte_rate=1)], seen, from_ms=START_MS, to_ms=rows[-1].ts_ms)
    replay(asking, rows)
    assert [outcome.client.client_id for outcome in asking.outcomes()] == ["c"]


def test_worst_first_order_puts_unaffected_clients_last() -> None:
    answer = asked(
        [limit("", "own", 100.0)],
        change({"client-id": None}, producer_byte_rate=1000),
        Used("u", "enough", [100] * 60),
        Used("u", "own", [100] * 60, throttle_ms=1000),
        Used("u", "much", [2000] * 60),
        Used("u", "more", [3000] * 60),
    )
    ordered = [outcome.client.client_id for outcome in worst_first(list(answer.values()))]
    assert ordered == ["more", "much", "enough", "own"]


LOADS = st.lists(st.integers(0, 300).map(lambda tens: tens * 10), min_size=1, max_size=40)


@settings(deadline=None)
@given(
    LOADS,
    LOADS,
    st.floats(100, 4000),
    st.booleans(),
    st.sampled_from([QuotaWindow(), QuotaWindow(1, 1000), QuotaWindow(2, 500), QuotaWindow(30, 300)]),
)
def test_clients_skipped_by_the_replay_are_never_throttled(
    first: list[int], second: list[int], bound: float, fetches: bool, window: QuotaWindow
) -> None:
    """The estimate that skips the replay is never too low, also for unrecorded windows."""
    api_key = FETCH if fetches else PRODUCE
    loads = [Used("u", "one", first, api_key=api_key), Used("u", "two", second, api_key=api_key)]
    rows = recorded(*loads)
    if not rows:
        return
    alteration = change({"user": "u"}, **{CONSUMER if fetches else PRODUCER: bound})
    if not question([], alteration, rows, window).groups:
        clients = {ClientAtBroker(row.quota_key, row.user, row.client_id, row.broker_id) for row in rows}
        seen = [Seen(client, 1e30, 10**30) for client in clients]  # whatever the recorded rates are
        when = {"from_ms": START_MS, "to_ms": rows[-1].ts_ms}
        asking = Simulation([], [alteration], seen, **when, windows=replayed(window))
        replay(asking, rows)
        assert {outcome.after.throttled_ms for outcome in asking.outcomes()} == {0}


def fact(broker_id: int, since_ms: int, samples: int, release: str = "4.3", callback_class: str = "") -> dict[str, Any]:
    return {
        "broker_id": broker_id,
        "since_ms": str(since_ms),
        "release": release,
        "samples": samples,
        "window_ms": 1000,
        "callback_class": callback_class,
    }


def windows(*facts: dict[str, Any]) -> list[BrokerWindow]:
    """At the brokers 1 and 2, since 100."""
    recorded = recorded_brokers(facts, 100).windows
    return [recorded.at(1), recorded.at(2)]


def test_without_facts_kafkas_default_is_replayed() -> None:
    assert windows() == windows(fact(1, 5, 0)) == [BrokerWindow(QuotaWindow())] * 2  # the broker is not described
    assert windows(fact(1, 5, 0), fact(2, 5, 1)) == [BrokerWindow(QuotaWindow(1))] * 2


def test_brokers_may_differ_and_an_unknown_one_is_as_another() -> None:
    assert windows(fact(1, 5, 31), fact(2, 5, 21, "3.7")) == [
        BrokerWindow(QuotaWindow(31)),
        BrokerWindow(QuotaWindow(21, before_3_8=True)),
    ]
    assert windows(fact(1, 5, 31)) == [BrokerWindow(QuotaWindow(31))] * 2


def test_rates_before_a_change_of_the_window_say_nothing_of_it() -> None:
    before, meanwhile = windows(fact(1, 5, 11), fact(1, 50, 31), fact(2, 5, 11), fact(2, 150, 31))
    assert before == BrokerWindow(QuotaWindow(31))
    assert meanwhile == BrokerWindow(QuotaWindow(31), is_recorded=False)


def test_classes_are_the_newest_of_each_broker() -> None:
    facts = [fact(1, 5, 11, callback_class="Old"), fact(1, 6, 11, callback_class="New"), fact(2, 5, 11)]
    assert recorded_brokers(facts, 100).callback_classes == ("New",)
