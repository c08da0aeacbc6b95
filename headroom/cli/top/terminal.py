"""Owns the terminal of `headroom top`: reads keys, draws, and asks the API in threads, so that keys work meanwhile."""

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from rich.style import Style

from headroom.cli.top.screen import screen
from headroom.cli.top.state import Row, RowKey, TopState, keys_of, pressed, refreshed
from headroom.daemon_thread import begin_in_daemon_thread

_POLL_S = 0.1
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen, without a cursor
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_MIN_COLUMNS, _MIN_LINES = 20, 5
_KEYS_AT_ONCE = 1024


def run_screen(
    read: Callable[[], list[Row]], usage: Callable[[Row], list[tuple[float, float]]], interval_s: float, first: TopState
) -> None:
    """Until `q` or Ctrl-C. `read` and `usage` raise ConnectionError; other errors end it and are raised."""
    state, due_s, shown = first, 0.0, ""
    rows: Future[list[Row]] | None = None
    rates: Future[list[tuple[float, float]]] | None = None
    asked_rates: tuple[RowKey | None, float] = (None, 0.0)  # the client, and the refresh
    with _whole_screen():
        while not state.is_over:
            if rows is None and not state.is_paused and time.monotonic() >= due_s:
                rows = begin_in_daemon_thread(read)
                due_s = time.monotonic() + interval_s
            try:
                if rows is not None and rows.done():
                    answered_rows, rows = rows, None
                    state = refreshed(state, answered_rows.result(), time.time())
                if rates is not None and rates.done():
                    answered_rates, rates = rates, None
                    if asked_rates[0] == state.detail:
                        state = replace(state, usage=tuple(answered_rates.result()))
            except ConnectionError as exc:
                state = replace(state, fault=f"{exc}; asking again")
            row = state.detailed
            if row is not None and not state.is_paused and rates is None and asked_rates != (state.detail, due_s):
                asked_rates = (state.detail, due_s)
                rates = begin_in_daemon_thread(partial(usage, row))
            frame = _frame(state)
            if frame != shown:
                sys.stdout.write(frame)
                sys.stdout.flush()
                shown = frame
            for key in keys_of(_typed()):
                state = pressed(state, key)


def _frame(state: TopState) -> str:
    columns, lines = shutil.get_terminal_size()
    kept = ("reverse", "bold", "dim") if os.environ.get("NO_COLOR") else None  # which row is chosen is no colour
    drawn = [
        Style.parse(" ".join(word for word in line.style.split() if kept is None or word in kept)).render(line.text)
        for line in screen(state, max(columns, _MIN_COLUMNS), max(lines, _MIN_LINES))
    ]
    return _HOME + (_END_LINE + "\r\n").join(drawn) + _END_LINE + _END_SCREEN


def _typed() -> bytes:
    """What was typed within _POLL_S; raises KeyboardInterrupt when the terminal is gone."""
    if not select.select([sys.stdin], [], [], _POLL_S)[0]:
        return b""
    typed = os.read(sys.stdin.fileno(), _KEYS_AT_ONCE)
    if not typed:
        raise KeyboardInterrupt
    return typed


@contextmanager
def _whole_screen() -> Iterator[None]:
    """Keys without Enter and without echo; the screen from before comes back at the end."""
    own = sys.stdin.fileno()
    before = termios.tcgetattr(own)
    try:
        tty.setcbreak(own)
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(own, termios.TCSADRAIN, before)
