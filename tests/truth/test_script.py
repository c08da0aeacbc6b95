"""The script's own expectations, and how rows are scored against them."""

import functools
from typing import Any

from tests.truth.score import SHARES, Score, score, victim_windows
from tests.truth.script import CLIENTS, HEAVY, PHASES, VICTIMS, expected

WINDOW_S, PHASE_S = 10, 40
BEGIN_S = 1_795_168_800


@functools.cache
def truth() -> dict[tuple[str, int], Any]:
    return dict(expected(WINDOW_S, PHASE_S))


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
            "impact": true.impact,
            "cause": true.cause,
        }
        for client in CLIENTS
        for (name, start), true in truth().items()
        if name == client.name and true.flagged is not None
    ]


def perfect_victims() -> list[dict[str, Any]]:
    return [
        {"client_id": name, "window_start": BEGIN_S + start, "slowed_by_client_id": HEAVY}
        for name in VICTIMS
        for start in victim_windows(WINDOW_S, PHASE_S)
    ]


def scored(rows: list[dict[str, Any]], victims: list[dict[str, Any]] | None = None) -> Score:
    return score(rows, perfect_victims() if victims is None else victims, BEGIN_S, WINDOW_S, PHASE_S)


def test_expected_rows_score_one() -> None:
    found = scored(perfect())
    assert found.passed
    assert found[: len(SHARES)] == (1.0,) * len(SHARES)
    assert found.faults == ()


def test_each_kind_of_error_lowers_its_share() -> None:
    def changed(name: str, **values: Any) -> list[dict[str, Any]]:
        return [row | values if row["client_id"] == name else row for row in perfect()]

    missed = scored(changed("moved", level="ok"))
    assert missed.recall < 0.95
    assert not missed.passed
    assert scored(changed("quiet-half", level="warn")).precision < 0.95
    assert scored(changed("moved", broker_id=1)).broker < 0.95
    assert scored(changed("team-greedy", culprit_client_id="x")).culprit < 0.95
    assert scored(changed("moved", reason="?")).reason < 0.95
    assert scored(changed("greedy-alone", impact="none")).impact < 0.99
    assert scored(changed("greedy-alone", impact="losing") + changed("reader-behind", impact="none")).impact < 1
    assert scored(changed("rolled", cause="")).cause < 1
    assert scored(perfect(), []).victim < 0.95
    blamed = {"client_id": "ramp", "window_start": BEGIN_S + PHASES * PHASE_S - WINDOW_S, "slowed_by_client_id": HEAVY}
    assert scored(perfect(), [*perfect_victims(), blamed]).victim < 1
    assert scored([])[:2] == (0.0, 0.0)
