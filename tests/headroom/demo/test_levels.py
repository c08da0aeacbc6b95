"""Comparison of the levels that the interfaces show."""

from __future__ import annotations

from headroom.demo.levels import Levels, by_client, differing, equal_levels_text

ROWS = [
    {"quota_key": "producer_byte_rate", "client_id": "a", "level": "ok", "usage": 1.0},
    {"quota_key": "consumer_byte_rate", "client_id": "a", "level": "warn", "usage": 1.0},
]


def shown(**other: Levels) -> dict[str, Levels]:
    return {"page": by_client(ROWS), "view": by_client(ROWS), **other}


def test_equal_levels_do_not_differ() -> None:
    assert by_client(ROWS) == {("producer_byte_rate", "a"): "ok", ("consumer_byte_rate", "a"): "warn"}
    assert differing(shown()) == []
    assert equal_levels_text(shown(), 2) == "levels equal: page, view: 2 of 2"


def test_differing_level_is_reported() -> None:
    levels = shown(top=by_client([ROWS[0] | {"level": "watch"}, ROWS[1]]))
    assert differing(levels) == ["a (producer_byte_rate) is ok by page, ok by view, watch by top"]
    assert equal_levels_text(levels, 2) == "levels equal: page, view, top: 1 of 2"


def test_client_missing_from_one_interface_is_reported() -> None:
    levels = shown(PromQL={})
    assert len(differing(levels)) == 2
    assert "missing by PromQL" in differing(levels)[0]
    assert equal_levels_text(levels, 16) == "levels equal: page, view, PromQL: 0 of 16"
