"""What changed among the instances of a client."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from quota_metrics.verdict.changes import ByteReport, SeenInstance, changes_before, gone_ms, network_of
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS
from quota_metrics.verdict.window import InstanceChange

MINUTE = 60_000
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
        first_ms, last_ms = (ONSET + round(at * MINUTE) for at in (pushed.first, pushed.last))
        gone = gone_ms(first_ms, last_ms, pushed.pushes, is_terminated=pushed.ended)
        instances.append(SeenInstance(str(number), first_ms, gone, pushed.software, network_of(pushed.address)))
        if pushed.sent:
            reports += [ByteReport(str(number), ONSET + at * MINUTE, pushed.sent, 0.0) for at in range(9)]
    return changes_before(instances, reports, ONSET + minute * MINUTE, MINUTE)


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
