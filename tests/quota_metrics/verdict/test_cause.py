"""What changed at the onset of a level: each cause by an example."""

from __future__ import annotations

from typing import Any

import pytest

from quota_metrics.verdict.cause import TotalUsage, cause_of_instances, cause_of_onset
from quota_metrics.verdict.level_and_reason import nearness
from quota_metrics.verdict.thresholds import Thresholds
from quota_metrics.verdict.window import Base, InstanceChange
from tests.kit.client_windows import LIMIT, client_window

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


@pytest.mark.parametrize("name", ["", "x takes 5 B/s since 10:04 UTC, 1 B/s before", "{name}", "%s"])
def test_own_cause_names_no_neighbour(name: str) -> None:
    text, own = cause(BASE._replace(usage=20_000.0), TotalUsage(2e4, 2e4), **NEIGHBOUR | {"greediest_client_id": name})
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
