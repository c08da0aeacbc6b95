"""The five tiles: level, text and runbook for each state of Headroom, and their last hour."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headroom.web.tiles import TRENDS, Reading, ServiceState, Tile, Trends, span_text, tile_rows, tiles

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
WELL = ServiceState(
    brokers=3,
    connections=12,
    window_s=600.0,
    pushes=600.0,
    oldest_s={"pushes": 0.4, "usage": 0.0},
    spool_bytes=9_000,
    spool_max_bytes=4.3e9,
    arrived_bytes=4.3e9 / 11 / 86_400 * 600,
)


def tile(name: str, state: ServiceState) -> Tile:
    (found,) = [one for one in tiles(state) if one.name == name]
    return found


def test_all_is_well() -> None:
    assert [(one.name, one.level, one.text, one.runbook) for one in tiles(WELL)] == [
        ("brokers and gateway", "ok", "3 brokers, 12 client connections", ""),
        ("pushes", "ok", "1.0 a second, none refused or dropped", ""),
        ("ingest lag", "ok", "oldest not stored: pushes 0.4 s, usage 0.0 s", ""),
        ("spool", "ok", "9.0 kB of 4.3 GB, 11 days at this rate", ""),
        ("store", "ok", "accepts rows", ""),
    ]


@pytest.mark.parametrize(
    ("name", "state", "level", "runbook"),
    [
        ("brokers and gateway", replace(WELL, left_out=5), "warn", "HeadroomUsageLeftOut"),
        ("brokers and gateway", replace(WELL, usage_lost=5), "critical", "HeadroomUsageLost"),
        (
            "brokers and gateway",
            replace(WELL, reason="network process 1 is gone"),
            "critical",
            "HeadroomRestarts",
        ),
        ("pushes", replace(WELL, over_budget=5), "warn", "HeadroomPayerOverBudget"),
        ("pushes", replace(WELL, dropped=5), "critical", "HeadroomRecordsDropped"),
        ("ingest lag", replace(WELL, oldest_s={"pushes": 31.0}), "critical", "HeadroomDataLate"),
        ("spool", replace(WELL, spool_bytes=4e9), "critical", "HeadroomSpoolFilling"),
        ("spool", replace(WELL, spool_bytes=1e9, arrived_bytes=6e8), "warn", "HeadroomSpoolFilling"),
        ("store", replace(WELL, store_up=False), "critical", "HeadroomStoreDown"),
        ("store", replace(WELL, reason="nothing is written for 60 s"), "critical", "HeadroomIngestStalled"),
    ],
)
def test_a_fault_has_a_level_and_a_runbook(name: str, state: ServiceState, level: str, runbook: str) -> None:
    found = tile(name, state)
    assert (found.level, found.runbook) == (level, runbook)
    assert (RUNBOOKS / f"{runbook}.md").is_file()
    assert all(one.level == "ok" for one in tiles(state) if one.name != name)


def test_before_anything_was_counted() -> None:
    assert tile("spool", ServiceState(spool_max_bytes=1e9)).text == "0 B of 1.0 GB, nothing arrives"
    assert tile("brokers and gateway", ServiceState()).text == "no cluster, 0 client connections"


def test_spans() -> None:
    shown = [span_text(span_s) for span_s in (0.0, 119.0, 120.0, 7_200.0, 172_800.0, 1e12)]
    assert shown == ["0 seconds", "119 seconds", "2 minutes", "2 hours", "2 days", "1000 days or more"]


def test_trends_have_the_last_hour_and_no_more() -> None:
    """Connections and spool are the highest of a minute, pushes and written records rates of it."""
    trends = Trends()
    for second in range(2 * 3600 + 1):
        minute = (second - 1) // 60
        peak = 500.0 if second % 60 == 30 else 0.0
        trends.note(float(second), Reading(minute, 3.0 * second, 0.5, peak, second * second / 2))
    found = trends.values()
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(TRENDS, 60)
    assert found["brokers and gateway"] == [float(minute) for minute in range(60, 120)]
    assert found["pushes"] == [3.0] * 60
    assert found["ingest lag"] == [0.5] * 60
    assert found["spool"] == [500.0] * 60
    # the mean rate of t * t / 2 over a minute is its middle
    assert found["store"] == [minute * 60.0 + 30 for minute in range(60, 120)]


def test_trends_begin_with_the_first_reading_and_a_count_that_began_anew_is_no_rate() -> None:
    trends = Trends()
    assert trends.values() == {}
    trends.note(7.0, Reading(connections=2, pushes=900))
    assert (trends.values()["brokers and gateway"], trends.values()["pushes"]) == ([2.0], [0.0])
    trends.note(17.0, Reading(connections=1, pushes=950))
    assert (trends.values()["brokers and gateway"], trends.values()["pushes"]) == ([2.0], [5.0])
    trends.note(80.0, Reading(pushes=10))
    assert trends.values()["pushes"] == [5.0, 0.0]


def test_each_tile_has_its_trend() -> None:
    rows = tile_rows(WELL, {"spool": [1.0, 2.0]})
    assert [row["trend"]["of"] for row in rows] == list(TRENDS.values())
    assert [row["trend"]["values"] for row in rows] == [[], [], [], [1.0, 2.0], []]
    assert {row["trend"]["step_s"] for row in rows} == {60.0}
