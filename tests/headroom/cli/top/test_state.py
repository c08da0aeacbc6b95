"""What keys do to the state of `headroom top`."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headroom.cli.top.screen import screen, sparkline
from headroom.cli.top.state import GROUPS, SORTS, TopState, keys_of, pressed, refreshed, row_key
from tests.kit.terminal.fake_serve import client_row

ROWS = [
    client_row("orders", "throttled", utilization=1.5, usage=300.0, muted_ms=31_000.0),
    client_row("billing", "warn", user="bob", utilization=0.85, usage=900.0),
    client_row("audit", "ok", user="bob", utilization=None, usage=5.0, limit=None, matched_entity=""),
]


def after(keys: str | list[str], state: TopState | None = None) -> TopState:
    return reduce(pressed, keys, state or refreshed(TopState(), ROWS))


def names(state: TopState) -> list[str]:
    return [row["client_id"] for row in state.shown]


def test_filter_is_typed_kept_and_cleared() -> None:
    assert names(after("/bil")) == ["billing"]
    typing = after("/bix")
    assert (typing.is_typing, typing.filter, names(typing)) == (True, "bix", [])
    assert names(after(["backspace"], typing)) == ["billing"]
    kept = after(["backspace", "enter"], typing)
    assert (kept.is_typing, kept.filter) == (False, "bi")
    assert (after(["escape"], kept).filter, after(["escape"], typing).filter) == ("", "")
    assert after("/qsgp").filter == "qsgp"  # letters are text while it is typed


def test_filter_finds_users_rules_and_software() -> None:
    assert names(after("/BOB")) == ["billing", "audit"]
    assert names(after("/client-id=orders")) == ["orders"]
    assert len(names(after("/librdkafka"))) == 3


def test_sort_goes_round() -> None:
    orders = {state.sort: names(state) for state in (after("s" * count) for count in range(len(SORTS)))}
    assert orders == {
        "level": ["orders", "billing", "audit"],
        "used": ["orders", "billing", "audit"],
        "usage": ["billing", "orders", "audit"],
        "muted": ["orders", "audit", "billing"],
        "client": ["audit", "billing", "orders"],
    }
    assert after("s" * len(SORTS)).sort == SORTS[0]


def test_groups_add_up_users_and_rules() -> None:
    by_user = {row["name"]: row for row in after("g").shown}
    assert (by_user["bob"]["clients"], by_user["bob"]["level"], by_user["bob"]["usage"]) == (2, "warn", 905.0)
    assert by_user["alice"]["throttled"] == 1
    assert [row["name"] for row in after("gg").shown] == ["client-id=orders", "client-id=billing", "(no rule)"]
    assert after("g" * len(GROUPS)).group == ""
    opened = after(["g", "down", "down", "enter"])  # bob's clients
    assert (opened.group, names(opened)) == ("", ["billing", "audit"])


def test_pause_keeps_the_rows_and_selection_follows_its_client() -> None:
    paused = after("p")
    assert refreshed(paused, []) == paused
    chosen = after(["down", "down"])
    assert chosen.selected == row_key(ROWS[1])
    assert refreshed(chosen, ROWS[::-1]).selected == row_key(ROWS[1])


def test_selection_stops_at_both_ends() -> None:
    assert after(["up", "up"]).selected == row_key(ROWS[0])
    assert after(["down", "page down", "j"]).selected == row_key(ROWS[2])
    assert pressed(TopState(), "down").selected is None


def test_enter_opens_the_detail_and_escape_closes_it() -> None:
    opened = after(["j", "j", "enter"])
    assert opened.detailed is not None
    assert opened.detailed["client_id"] == "billing"
    assert after(["escape"], opened).detail is None
    assert refreshed(opened, ROWS[:1]).detailed is None
    assert "not active any more" in screen(refreshed(opened, ROWS[:1]), 80, 24)[1].text


def test_q_ends() -> None:
    assert after("q").is_over


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bs", ["up", "down", "s"]),
        (b"/\xc3\xb6\x7f\r", ["/", "\N{LATIN SMALL LETTER O WITH DIAERESIS}", "backspace", "enter"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[1;5Hq", ["q"]),
        (b"\x1b[", []),
        (b"\x00\xff", []),
    ],
)
def test_keys_of_a_terminal(typed: bytes, keys: list[str]) -> None:
    assert keys_of(typed) == keys


@given(st.binary(max_size=40), st.integers(20, 200), st.integers(5, 50))
def test_whatever_is_typed_the_screen_fits(typed: bytes, width: int, height: int) -> None:
    state = after(keys_of(typed))
    drawn = screen(state, width, height)
    assert len(drawn) == height
    assert all(len(line.text) <= width and line.text.isprintable() for line in drawn)


def test_detail_has_the_reason_and_a_sparkline() -> None:
    opened = after(["enter"])
    known = replace(opened, usage=((1.0, 0.0), (2.0, 1e5), (3.0, 2e5)))
    lines = [line.text for line in screen(known, 80, 24)]
    assert lines[1] == "throttled"
    assert " ".join(lines).count(ROWS[0]["reason"]) == 1
    assert "\N{LOWER ONE EIGHTH BLOCK}\N{LOWER FIVE EIGHTHS BLOCK}\N{FULL BLOCK}" in lines


def test_a_sparkline_shows_peaks_and_fits() -> None:
    assert sparkline([0.0] * 899 + [8.0], 8.0, 60, is_ascii=True) == "_" * 59 + "#"
    assert len(sparkline([1.0, 2.0], 8.0, 60)) == 2
