"""What keys do to the state of `headroom top`, and keys typed into it in a real terminal."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headroom.cli.top import terminal
from headroom.cli.top.screen import screen, sparkline
from headroom.cli.top.state import GROUPS, SORTS, TopState, keys_of, pressed, refreshed, row_key
from tests.kit.terminal.fake_serve import LONGEST_NAME, FakeServe, client_row
from tests.kit.terminal.pseudo_terminal import PseudoTerminal

ROWS = [
    client_row("orders", "throttled", team="payments", utilization=1.5, usage=300.0, muted_ms=31_000.0),
    client_row("billing", "warn", user="bob", team="payments", utilization=0.85, usage=900.0),
    client_row("audit", "ok", user="bob", utilization=None, usage=5.0, limit=None, matched_entity=""),
]
NOW_S = datetime(2026, 11, 23, 15, 45, 20, tzinfo=UTC).timestamp()  # the rows are of 15:44


def after(keys: str | list[str], state: TopState | None = None) -> TopState:
    return reduce(pressed, keys, state or refreshed(TopState(), ROWS, NOW_S))


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


def test_groups_add_up_users_teams_and_rules() -> None:
    by_user = {row["name"]: row for row in after("g").shown}
    assert (by_user["bob"]["clients"], by_user["bob"]["level"], by_user["bob"]["usage"]) == (2, "warn", 905.0)
    assert by_user["alice"]["throttled"] == 1
    by_team = {row["name"]: row["clients"] for row in after("ggg").shown}
    assert by_team == {"payments": 2, "unowned": 1}
    assert names(after("/payme")) == ["orders", "billing"]
    assert [row["name"] for row in after("gg").shown] == ["client-id=orders", "client-id=billing", "(no rule)"]
    assert after("g" * len(GROUPS)).group == ""
    opened = after(["g", "down", "down", "enter"])  # bob's clients
    assert (opened.group, names(opened)) == ("", ["billing", "audit"])
    assert names(after(["escape"], opened)) == ["orders", "billing", "audit"]
    assert (
        after("g", refreshed(TopState(), ROWS[2:], NOW_S)).shown[0]["utilization"] is None
    )  # no limit, as on the page


def test_a_group_is_of_one_cluster_and_opens_exactly_its_clients() -> None:
    rows = [
        client_row("one", "warn", user="bob", usage=1.0),
        client_row("two", "ok", user="bob", usage=2.0, cluster="dr"),
        client_row("three", "ok", user="bobby", usage=4.0),
        client_row("four", "ok", user="", usage=8.0, matched_entity=""),
    ]
    state = after("g", refreshed(TopState(), rows, NOW_S))
    assert {(row["cluster"], row["name"]): row["usage"] for row in state.shown} == {
        ("prod", "bob"): 1.0, ("dr", "bob"): 2.0, ("prod", "bobby"): 4.0, ("prod", ""): 8.0,
    }  # fmt: skip
    assert sum("bob of dr" in line.text for line in screen(state, 120, 24)) == 1

    def opened(cluster: str, name: str) -> list[str]:
        (row,) = (row for row in state.shown if (row["cluster"], row["name"]) == (cluster, name))
        return names(after(["enter"], replace(state, selected=row_key(row))))

    assert (opened("prod", "bob"), opened("dr", "bob"), opened("prod", "")) == (["one"], ["two"], ["four"])
    by_rule = after("gg", refreshed(TopState(), rows, NOW_S))
    without = next(row for row in by_rule.shown if row["name"] == "(no rule)")
    assert names(after(["enter"], replace(by_rule, selected=row_key(without)))) == ["four"]


def test_the_head_says_how_old_the_minute_is_and_that_there_may_be_more() -> None:
    def head(now_s: float, count: int = 1) -> str:
        rows = [client_row("one", "ok")] * count
        return screen(refreshed(TopState(), rows, now_s), 200, 24)[0].text

    assert head(NOW_S) == "1 client  minute from 15:44:00 UTC  sorted by level"
    assert "minute from 15:44:00 UTC, 6.0 h old" in head(NOW_S + 6 * 3600 - 80)
    assert "10,000 clients  minute from 15:44:00 UTC  the worst; there may be more" in head(NOW_S, 10_000)


def test_pause_keeps_the_rows_and_selection_follows_its_client() -> None:
    paused = after("p")
    assert refreshed(paused, [], NOW_S) == paused
    chosen = after(["down", "down"])
    assert chosen.selected == row_key(ROWS[1])
    assert refreshed(chosen, ROWS[::-1], NOW_S).selected == row_key(ROWS[1])


def test_selection_stops_at_both_ends() -> None:
    assert after(["up", "up"]).selected == row_key(ROWS[0])
    assert after(["down", "page down", "j"]).selected == row_key(ROWS[2])
    assert pressed(TopState(), "down").selected is None


def test_selection_is_seen_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    frames = {terminal._frame(after(["down"] * count)) for count in range(3)}
    assert (len(frames), any("[3" in frame for frame in frames)) == (3, False)


def test_enter_opens_the_detail_and_escape_closes_it() -> None:
    opened = after(["j", "j", "enter"])
    assert opened.detailed is not None
    assert opened.detailed["client_id"] == "billing"
    assert after(["escape"], opened).detail is None
    assert refreshed(opened, ROWS[:1], NOW_S).detailed is None
    assert "not active any more" in screen(refreshed(opened, ROWS[:1], NOW_S), 80, 24)[1].text


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
    assert all(cell_len(line.text) <= width and line.text.isprintable() for line in drawn)


def test_detail_has_the_reason_and_a_sparkline() -> None:
    opened = after(["enter"])
    known = replace(opened, usage=((1.0, 0.0), (2.0, 1e5), (3.0, 2e5)))
    lines = [line.text for line in screen(known, 80, 24)]
    assert lines[1] == "throttled"
    assert " ".join(lines).count(ROWS[0]["reason"]) == 1
    assert "\N{LOWER ONE EIGHTH BLOCK}\N{LOWER FIVE EIGHTHS BLOCK}\N{FULL BLOCK}" in lines


def test_a_sparkline_shows_peaks_and_fits() -> None:
    assert sparkline([0.0] * 899 + [8.0], 8.0, 60) == "\N{LOWER ONE EIGHTH BLOCK}" * 59 + "\N{FULL BLOCK}"
    assert len(sparkline([1.0, 2.0], 8.0, 60)) == 2


TYPED_ROWS = [
    client_row(LONGEST_NAME, "throttled", usage=302_400.0, utilization=1.512, muted_ms=31_000.0),
    *(client_row(f"client-{number:03}", "ok", user="bob") for number in range(100)),
]
RATES = {"at": list(range(900)), "rate": [200_000.0] * 900}


@pytest.fixture
def serve() -> Iterator[FakeServe]:
    with FakeServe({"/api/v1/headroom": TYPED_ROWS, "/api/v1/usage": {"brokers": {"1": RATES}}}) as fake:
        yield fake


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_filter_detail_group_pause_and_quit(serve: FakeServe, size: tuple[int, int]) -> None:
    columns, rows = size
    with PseudoTerminal([sys.executable, "-m", "headroom", "top", "--http", serve.http], columns, rows) as terminal:
        frame = terminal.wait_for("client-000").splitlines()
        assert (len(frame), all(len(line) <= columns for line in frame)) == (rows, True)
        assert (frame[2].startswith(f"throttled  {LONGEST_NAME}"), "151.2 %" in frame[2]) == (True, True)
        terminal.type("/client-04")
        terminal.wait_for("10 of 101")
        terminal.type("\r\x1b[B\r")
        assert "at 85.3 % of producer_byte_rate 200.0 kB/s, 29.4 kB/s headroom" in terminal.wait_for(
            "highest 200.0 kB/s"
        )
        terminal.type("\x1b")
        terminal.wait_for("10 of 101")
        terminal.type("\x1b")
        terminal.wait_for("101 clients  minute")
        terminal.type("g")
        assert "bob" in terminal.wait_for("by user")
        terminal.type("p")
        terminal.wait_for("PAUSED")
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.raw.endswith("\x1b[?25h\x1b[?1049l")


def test_a_service_that_goes_away_is_said_and_the_rows_stay(serve: FakeServe) -> None:
    argv = [sys.executable, "-m", "headroom", "top", "--interval", "0.5", "--http", serve.http]
    with PseudoTerminal(argv, 120, 24) as terminal:
        terminal.wait_for("client-000")
        del serve.answers["/api/v1/headroom"]
        assert "client-000" in terminal.wait_for("asking again")
        serve.answers["/api/v1/headroom"] = TYPED_ROWS[:1]
        terminal.wait_for("1 client  minute")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "\x1b[?1049l" in terminal.raw
