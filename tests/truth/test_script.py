"""The script's own expectations, and how rows are scored against them."""

from __future__ import annotations

import functools
from typing import Any

from tests.truth.score import score
from tests.truth.script import CLIENTS, PHASES, expected

WINDOW_S, PHASE_S = 10, 40
BEGIN_S = 1_795_168_800


@functools.cache
def truth() -> dict[tuple[str, int], Any]:
    return dict(expected(WINDOW_S, PHASE_S))


def flags(name: str) -> str:
    shown = {True: "X", False: ".", None: "?"}
    return "".join(shown[truth()[name, start].flagged] for start in range(0, PHASES * PHASE_S, WINDOW_S))


def perfect() -> list[dict[str, Any]]:
    """The rows that the script expects; of windows that are not scored, none."""
    return [
        {
            "client_id": client.name,
            "quota_key": client.quota_key,
            "window_start": BEGIN_S + start,
            "level": "critical" if true.flagged else "ok",
            "broker_id": true.broker,
            "culprit_client_id": true.culprit,
            "reason": f"because it {true.reason}",
        }
        for client in CLIENTS
        for (name, start), true in truth().items()
        if name == client.name and true.flagged is not None
    ]


def test_script_contains_each_case() -> None:
    assert flags("quiet-third") == "." * 12
    assert flags("two-gateways") == "X" * 12
    assert flags("ramp").startswith("....")
    assert flags("ramp").endswith("XXXX")
    assert flags("lowered") == "....??XX??.."
    assert flags("moved") == "XXXX??XXXXXX"
    assert flags("team-small-a") == flags("team-greedy")
    assert set(flags("bursts")) == {"X", "."}


def test_expected_rows_score_one() -> None:
    found = score(perfect(), BEGIN_S, WINDOW_S, PHASE_S)
    assert found.passed
    assert found[:5] == (1.0, 1.0, 1.0, 1.0, 1.0)
    assert found.faults == ()


def test_each_kind_of_error_lowers_its_share() -> None:
    def changed(name: str, **values: Any) -> list[dict[str, Any]]:
        return [row | values if row["client_id"] == name else row for row in perfect()]

    missed = score(changed("moved", level="ok"), BEGIN_S, WINDOW_S, PHASE_S)
    assert missed.recall < 0.95
    assert not missed.passed
    assert score(changed("quiet-half", level="warn"), BEGIN_S, WINDOW_S, PHASE_S).precision < 0.95
    assert score(changed("moved", broker_id=1), BEGIN_S, WINDOW_S, PHASE_S).broker < 0.95
    assert score(changed("team-greedy", culprit_client_id="x"), BEGIN_S, WINDOW_S, PHASE_S).culprit < 0.95
    assert score(changed("moved", reason="?"), BEGIN_S, WINDOW_S, PHASE_S).reason < 0.95
    assert score([], BEGIN_S, WINDOW_S, PHASE_S)[:2] == (0.0, 0.0)
