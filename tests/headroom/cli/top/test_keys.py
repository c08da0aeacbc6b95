"""Keys typed into `headroom top` in a real terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.kit.terminal.fake_serve import FakeServe, client_row
from tests.kit.terminal.pseudo_terminal import PseudoTerminal

LONGEST_NAME = "orders-of-the-payments-team-01"  # 30 characters
ROWS = [
    client_row(LONGEST_NAME, "throttled", usage=302_400.0, utilization=1.512, muted_ms=31_000.0),
    *(client_row(f"client-{number:03}", "ok", user="bob") for number in range(100)),
]
RATES = {"at": list(range(900)), "rate": [200_000.0] * 900}


@pytest.fixture
def serve() -> Iterator[FakeServe]:
    with FakeServe({"/api/v1/headroom": ROWS, "/api/v1/usage": {"brokers": {"1": RATES}}}) as fake:
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
        serve.answers["/api/v1/headroom"] = ROWS[:1]
        terminal.wait_for("1 client  minute")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "\x1b[?1049l" in terminal.raw
