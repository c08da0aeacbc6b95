"""What changed at the onset of a level, each cause by an example; and what changed among the instances of a client."""

from typing import Any, NamedTuple

import pytest

from quota_metrics.verdict.cause import TotalUsage, cause_of_instances, cause_of_onset
from quota_metrics.verdict.changes import ByteReport, SeenInstance, changes_before, gone_ms, network_of
from quota_metrics.verdict.level_and_reason import nearness
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS, Thresholds
from quota_metrics.verdict.window import Base, InstanceChange
from tests.kit.client_windows import LIMIT, MINUTE_MS, client_window

THRESHOLDS = Thresholds()
AT = 36_240_000  # 10:04 UTC
BASE = Base(LIMIT, True, 60_000.0, 60_000.0, "", "orders", "", "", None)
ALONE = TotalUsage(180_000.0, 60_000.0)


def cause(base: Base | None, totals: TotalUsage = ALONE, *, is_new: bool = False, **other: Any) -> tuple[str, str]:
    """Of a client that now is at 90 %."""
    now = nearness(client_window(0.9, window_start_ms=AT, **other), THRESHOLDS)
    return cause_of_onset(now, base, totals, is_new=is_new)


def test_limit_that_fell() -> None:
    halved = BASE._replace(limit=2 * LIMIT, usage=170_000.0, group_usage=170_000.0)
    assert cause(halved)[0] == "limit lowered from 400.0 kB/s to 200.0 kB/s at 10:04 UTC"
    assert cause(halved._replace(limit=None))[0] == "limit of 200.0 kB/s since 10:04 UTC, none before"
    assert cause(halved, limit=0.0)[0] == "limit lowered from 400.0 kB/s to 0 B/s at 10:04 UTC"
    assert cause(halved._replace(limit_known=False)) == ("", "")
    assert cause(halved._replace(usage=60_000.0, group_usage=60_000.0)) == ("", "")  # the client rose itself


def test_limit_of_another_bucket_counts_for_the_client_alone() -> None:
    shared = BASE._replace(limit=2 * LIMIT, usage=60_000.0, group_usage=170_000.0)
    assert cause(shared)[0].startswith("limit lowered")
    assert cause(shared._replace(bucket_user="alice")) == ("", "")


def test_client_that_began() -> None:
    began = "client began at 10:04 UTC with 180.0 kB/s, no usage in the 5 windows before"
    assert cause(None, is_new=True) == (began, began)
    assert cause(None, is_new=True, group_usage=400_000.0) == ("", "")  # others have more than half of it
    assert cause(None) == ("", "")


def test_load_that_moved() -> None:
    moved = cause(BASE, TotalUsage(180_000.0, 170_000.0))
    assert moved[0] == (
        "load moved to broker 1 at 10:04 UTC: 180.0 kB/s of 180.0 kB/s are there, 60.0 kB/s of 170.0 kB/s before"
    )
    assert cause(BASE, TotalUsage(180_000.0, 119_000.0)) == ("", "")  # most of it is new
    assert cause(None, TotalUsage(180_000.0, 180_000.0))[0].startswith("load moved to broker 1")


NEIGHBOUR: dict[str, Any] = {
    "usage": 20_000.0, "shared_with": 2, "greediest_user": "bob", "greediest_client_id": "etl",
    "greediest_usage": 144_000.0, "members_usage": 180_000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "took"),
    [
        (BASE._replace(usage=20_000.0, culprit_user="bob", culprit_client_id="etl", culprit_share=0.5), "30.0 kB/s"),
        (BASE._replace(usage=20_000.0), "at most 40.0 kB/s"),
        (
            BASE._replace(usage=20_000.0, culprit_user="carol", culprit_client_id="web", culprit_share=0.5),
            "at most 10.0 kB/s",
        ),
        (
            BASE._replace(usage=40_000.0, culprit_user="alice", culprit_client_id="orders", culprit_share=0.6),
            "at most 20.0 kB/s",
        ),
    ],
)
def test_neighbour_that_rose(base: Base, took: str) -> None:
    rose = f"takes 144.0 kB/s since 10:04 UTC, {took} before"
    assert cause(base, TotalUsage(20_000.0, base.usage), **NEIGHBOUR) == (
        f"neighbour etl {rose}",
        f"another client {rose}",
    )


@pytest.mark.parametrize("name", ["(no client id)", "user=bob", "x takes 5 B/s since 10:04 UTC, 1 B/s before", "%s"])
def test_own_cause_names_no_neighbour(name: str) -> None:
    client_id = {"(no client id)": "", "user=bob": "orders"}.get(name, name)
    neighbour = NEIGHBOUR | {"greediest_client_id": client_id}
    text, own = cause(BASE._replace(usage=20_000.0), TotalUsage(2e4, 2e4), **neighbour)
    assert text == f"neighbour {name} takes 144.0 kB/s since 10:04 UTC, at most 40.0 kB/s before"
    assert own == "another client takes 144.0 kB/s since 10:04 UTC, at most 40.0 kB/s before"


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (None, {}),
        (BASE._replace(bucket_user="alice"), {}),
        (BASE._replace(group_usage=180_000.0), {}),
        (BASE, {"greediest_user": "alice", "greediest_client_id": "orders"}),
        (BASE._replace(culprit_user="bob", culprit_client_id="etl", culprit_share=1.0), {"greediest_usage": 100_000.0}),
    ],
)
def test_neighbour_that_did_not_rise(base: Base | None, other: dict[str, Any]) -> None:
    totals = TotalUsage(20_000.0, base.usage if base else 0.0)
    assert cause(base, totals, **NEIGHBOUR | other) == ("", "")


RESTART = InstanceChange("1 of 2 instances restarted at 10:03 UTC", 0.5, 0.0, None, None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (RESTART, ""),
        (RESTART._replace(kept=0.0), RESTART.text),  # all are new
        (RESTART._replace(growth=1.0), RESTART.text),  # as many more as explain it
        (RESTART._replace(growth=0.5), ""),
        (RESTART._replace(sent_share=0.9), f"{RESTART.text}; these report 90 % of its bytes"),
        (RESTART._replace(sent_share=0.4, kept=0.0), ""),  # what they report is known, and too little
        (RESTART._replace(received_share=0.9), ""),  # the other side of the quota
        (RESTART._replace(text="", kept=0.0), ""),
    ],
)
def test_instances_that_changed(change: InstanceChange, text: str) -> None:
    assert cause_of_instances(client_window(0.9), 60_000.0, change) == text
    assert cause_of_instances(client_window(0.9), 180_000.0, change) == ""  # nothing rose


ONSET = 4_102_444_800_000  # 00:00
OLD, NEW = "java 3.9.1", "java 4.3.1"


class Pushed(NamedTuple):
    """An instance that pushed from a minute of the onset until another, and what it reports in each minute after it."""

    first: float
    last: float = 60.0
    software: str = OLD
    address: str = "10.0.0.1"
    ended: bool = False
    pushes: int = 1
    sent: float = 0.0


STAYS = Pushed(-60)
FLEETS = {
    "rollout": [*[STAYS._replace(sent=10.0)] * 5, *[Pushed(-60, 0.1, ended=True)] * 5]
    + [Pushed(0.1, software=NEW, sent=90.0)] * 5,
    "network": [STAYS._replace(sent=10.0), Pushed(-0.5, address="10.9.9.7", sent=30.0)],
    "ipv6": [STAYS, Pushed(0.2, address="2001:db8:1:2:3::4")],
    "more": [STAYS] * 2 + [Pushed(0.5)] * 3,
    "restart": [Pushed(-60, -0.4, ended=True), Pushed(-0.2)],
    "appears": [Pushed(0.1)],  # or its telemetry: nobody knows of others before
    "steady": [STAYS, Pushed(-30)],
    # Two that end without a terminating push: with an interval of 10 s, and of five minutes.
    "killed": [Pushed(-60, -2, pushes=349), Pushed(-60, -2, pushes=13), STAYS, Pushed(0.3, software=NEW)],
    "silent": [Pushed(-60, -20), STAYS, Pushed(0.3, address="hostname")],
    "two versions": [STAYS] * 3 + [Pushed(0.1, software=version) for version in ("b 2", "b 1", "b 3", "b 1", OLD)],
}


def changes(fleet: str, minute: int) -> tuple[InstanceChange, ...]:
    """Of the window that begins so many minutes after the onset."""
    instances, reports = [], []
    for number, pushed in enumerate(FLEETS[fleet]):
        first_ms, last_ms = (ONSET + round(at * MINUTE_MS) for at in (pushed.first, pushed.last))
        gone = gone_ms(first_ms, last_ms, pushed.pushes, is_terminated=pushed.ended)
        instances.append(SeenInstance(str(number), first_ms, gone, pushed.software, network_of(pushed.address)))
        if pushed.sent:
            reports += [ByteReport(str(number), ONSET + at * MINUTE_MS, pushed.sent, 0.0) for at in range(9)]
    return changes_before(instances, reports, ONSET + minute * MINUTE_MS, MINUTE_MS)


@pytest.mark.parametrize(
    ("fleet", "text", "numbers"),
    [
        ("rollout", f"5 of 10 instances run {NEW} since 00:00 UTC, {OLD} before", (0.5, 0.0, 0.9, None)),
        ("network", "1 of 2 instances are in 10.9.9.0/24 since 23:59 UTC, none before", (1.0, 1.0, 0.75, None)),
        ("ipv6", "1 of 2 instances are in 2001:db8:1:2::/64 since 00:00 UTC, none before", (1.0, 1.0, None, None)),
        ("more", "5 instances since 00:00 UTC, 2 before", (1.0, 1.5, None, None)),
        ("restart", "1 of 1 instances restarted at 23:59 UTC", (0.0, 0.0, None, None)),
        ("killed", f"1 of 3 instances run {NEW} since 00:00 UTC, {OLD} before", (1.0, 0.5, None, None)),
        ("silent", "2 instances since 00:00 UTC, 1 before", (1.0, 1.0, None, None)),
        ("two versions", f"2 of 8 instances run b 1 since 00:00 UTC, {OLD} before", (1.0, 8 / 3 - 1, None, None)),
    ],
)
def test_changes_are_named_with_shares(fleet: str, text: str, numbers: tuple[Any, ...]) -> None:
    assert changes(fleet, 1)[0] == (text, *numbers)  # the onset was a window before


@pytest.mark.parametrize("fleet", ["appears", "steady"])
def test_nothing_changed_that_is_known(fleet: str) -> None:
    assert changes(fleet, 1) == ()


def test_an_instance_is_new_for_onsets_up_to_the_window_after_its_own() -> None:
    for minute in range(1, CAUSE_WINDOWS + 2):  # they began in minute 0, so before an onset in minute 2 or later
        named = [bool(change.text) for change in changes("rollout", minute)]
        assert named == [minute - ago <= 1 for ago in range(1, CAUSE_WINDOWS + 1)], minute
    assert changes("rollout", CAUSE_WINDOWS + 2) == ()


@pytest.mark.parametrize(
    ("pushes", "is_terminated", "silent_ms"),
    [
        (1, False, 900_000),  # its interval is not known
        (13, False, 150_000),  # three intervals of 50 s
        (601, False, 15_000),
        (2, False, 900_000),
        (13, True, 0),
    ],
)
def test_an_instance_is_gone_after_three_intervals(pushes: int, is_terminated: bool, silent_ms: int) -> None:
    assert gone_ms(ONSET, ONSET + 600_000, pushes, is_terminated=is_terminated) == ONSET + 600_000 + silent_ms


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("::ffff:10.1.2.3", "::/64"),
        ("", ""),
        ("hostname", ""),
        ("10.1.2", ""),
        ("10.1.2.3/8", ""),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network
