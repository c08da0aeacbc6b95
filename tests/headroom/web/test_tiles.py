"""The five tiles: level, text and runbook for each state of Headroom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headroom.web.tiles import ServiceState, Tile, span_text, tiles

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
