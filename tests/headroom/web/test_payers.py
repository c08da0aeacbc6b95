"""The table of payers, from what was refused, not metered, and stored."""

from __future__ import annotations

from headroom.web.payers import payer_rows


def cost(payer: str, points: int) -> dict[str, object]:
    return {"payer": payer, "pushes": 1.0, "bytes": 10.0, "points": float(points), "instances": 2.0}


def test_those_over_budget_come_first_then_the_costliest() -> None:
    over = [{"payer": "User:mallory", "refused": {"requests": 3, "bytes": 4}, "last_refused_ms": 5}]
    left_out = [{"payer": "10.0.0.9", "exchanges": 7, "last_ms": 1}]
    rows = payer_rows(over, left_out, [cost("User:big", 900), cost("User:mallory", 1), cost("User:small", 5)])
    assert [row["payer"] for row in rows] == ["User:mallory", "10.0.0.9", "User:big", "User:small"]
    assert rows[0] == {
        "payer": "User:mallory",
        "refused": {"requests": 3, "bytes": 4},
        "last_refused_ms": 5,
        "not_metered": 0,
        "pushes": 1,
        "bytes": 10,
        "points": 1,
        "instances": 2,
    }
    assert (rows[1]["not_metered"], rows[1]["points"], rows[2]["refused"]) == (7, 0, {})
