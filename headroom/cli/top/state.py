"""What `headroom top` shows, and what each key does to it. Sans-I/O: rows and keys come in, a new state comes out."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from quota_metrics.verdict.thresholds import LEVELS

Row = dict[str, Any]
RowKey = tuple[Any, ...]

UP, DOWN, PAGE_UP, PAGE_DOWN = "up", "down", "page up", "page down"
ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
SORTS: Final = ("level", "used", "usage", "muted", "client")
GROUPS: Final = ("", "user", "rule", "team")  # empty: a line for each client
MOST_ROWS: Final = 10_000  # of one answer of the API
_PAGE = 10
_MAX_FILTER = 60
_NAMED: Final = {
    b"\x1b[A": UP, b"\x1b[B": DOWN, b"\x1bOA": UP, b"\x1bOB": DOWN, b"\x1b[5~": PAGE_UP, b"\x1b[6~": PAGE_DOWN,
    b"\r": ENTER, b"\n": ENTER, b"\x7f": BACKSPACE, b"\x08": BACKSPACE, b"\x1b": ESCAPE,
}  # fmt: skip
# A control sequence up to its final byte, a control key, or text.
_TOKEN: Final = re.compile(rb"\x1b[\[O][^@-~]*[@-~]?|[\r\n\x7f\x08\x1b]|[^\r\n\x7f\x08\x1b]+")


@dataclass(frozen=True, slots=True)
class TopState:
    """`rows`: of `/api/v1/headroom`, the worst first. `fault`: why they are not newer. `usage`: of the client whose
    detail is shown, (seconds since 1970, rate). `now_s`: when the rows came, in seconds since 1970."""

    rows: tuple[Row, ...] = ()
    fault: str = ""
    filter: str = ""
    within: tuple[str, str, str] | None = None  # the group whose clients are shown: its kind, cluster and name
    is_typing: bool = False  # the filter
    sort: str = SORTS[0]
    group: str = ""
    is_paused: bool = False
    selected: RowKey | None = None
    detail: RowKey | None = None
    usage: tuple[tuple[float, float], ...] = ()
    now_s: float = 0.0
    is_over: bool = False

    @property
    def shown(self) -> list[Row]:
        """The rows that match the filter, grouped and sorted."""
        matching = [
            row
            for row in self.rows
            if _matches(row, self.filter.lower())
            and (self.within is None or _group_of(row, self.within[0]) == self.within[1:])
        ]
        rows = grouped(matching, self.group) if self.group else matching
        return rows if self.sort == SORTS[0] and not self.group else sorted(rows, key=_ORDERS[self.sort])

    @property
    def detailed(self) -> Row | None:
        """The row whose detail is shown; None: the table is, or the client is gone."""
        return next((row for row in self.rows if self.detail is not None and row_key(row) == self.detail), None)


def row_key(row: Row) -> RowKey:
    """Names a row from one refresh to the next."""
    return tuple(row.get(name) for name in ("cluster", "source", "quota_key", "user", "client_id", "matched_entity"))


def refreshed(state: TopState, rows: Iterable[Row], now_s: float) -> TopState:
    """With newer rows. Nothing moves while it is paused. `now_s`: seconds since 1970."""
    return state if state.is_paused else replace(state, rows=tuple(rows), fault="", now_s=now_s)


def keys_of(typed: bytes) -> list[str]:
    """The keys of what a terminal sent: characters, and the names above. Unknown sequences are left out."""
    keys = []
    for token in _TOKEN.findall(typed):
        if token in _NAMED:
            keys.append(_NAMED[token])
        elif not token.startswith(b"\x1b"):
            keys += [char for char in token.decode("utf-8", "ignore") if char.isprintable()]
    return keys


def pressed(state: TopState, key: str) -> TopState:
    if state.is_typing:
        return _typed(state, key)
    if state.detail is not None and key in (ESCAPE, ENTER, BACKSPACE):
        return replace(state, detail=None, usage=())
    change = _KEYS.get(key)
    return state if change is None else change(state)


def _typed(state: TopState, key: str) -> TopState:
    if key == ENTER:
        return replace(state, is_typing=False)
    if key == ESCAPE:
        return replace(state, is_typing=False, filter="")
    if key == BACKSPACE:
        return replace(state, filter=state.filter[:-1])
    return replace(state, filter=(state.filter + key)[:_MAX_FILTER]) if len(key) == 1 else state


def _moved(by: int) -> Callable[[TopState], TopState]:
    def move(state: TopState) -> TopState:
        keys = [row_key(row) for row in state.shown]
        if not keys:
            return state
        at = keys.index(state.selected) + by if state.selected in keys else 0
        return replace(state, selected=keys[max(0, min(at, len(keys) - 1))])

    return move


def _opened(state: TopState) -> TopState:
    """A client's detail; of a group, its clients."""
    shown = state.shown
    row = next((row for row in shown if row_key(row) == state.selected), shown[0] if shown else None)
    if row is None:
        return state
    if state.group:
        return replace(state, group="", within=(state.group, row["cluster"], row["name"]), selected=None)
    return replace(state, selected=row_key(row), detail=row_key(row), usage=())


def _next(choices: Sequence[str], current: str) -> str:
    return choices[(choices.index(current) + 1) % len(choices)]


_KEYS: Final[dict[str, Callable[[TopState], TopState]]] = {
    "q": lambda state: replace(state, is_over=True),
    "/": lambda state: replace(state, is_typing=True, filter="", detail=None),
    "s": lambda state: replace(state, sort=_next(SORTS, state.sort)),
    "g": lambda state: replace(state, group=_next(GROUPS, state.group), within=None, selected=None, detail=None),
    "p": lambda state: replace(state, is_paused=not state.is_paused),
    "j": _moved(1),
    "k": _moved(-1),
    DOWN: _moved(1),
    UP: _moved(-1),
    PAGE_DOWN: _moved(_PAGE),
    PAGE_UP: _moved(-_PAGE),
    ENTER: _opened,
    ESCAPE: lambda state: replace(state, filter="", within=None),
}


def _matches(row: Row, part: str) -> bool:
    names = (
        row["client_id"],
        row["user"],
        row["team"],
        row.get("matched_entity") or "",
        row.get("software_name") or "",
    )
    return any(part in name.lower() for name in names)


def grouped(rows: Iterable[Row], by: str) -> list[Row]:
    """One row for each user, team or rule of a cluster and quota: the worst level, the number of clients, their usage
    and the fullest."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((*_group_of(row, by), row["quota_key"]), []).append(row)
    return [
        {
            "cluster": cluster,
            "name": name,
            "user": name,
            "client_id": name,
            "quota_key": key,
            "matched_entity": "",
            "level": max((row["level"] for row in members), key=LEVELS.index),
            "clients": len(members),
            "throttled": sum(row["level"] == "throttled" for row in members),
            "usage": sum(row["usage"] or 0.0 for row in members),
            "utilization": max((row["utilization"] for row in members if row["utilization"] is not None), default=None),
            "muted_ms": max(row["muted_ms"] or 0.0 for row in members),
        }
        for (cluster, name, key), members in groups.items()
    ]


def _group_of(row: Row, by: str) -> tuple[str, str]:
    """The cluster, and the user, team or rule."""
    return row["cluster"], row.get("matched_entity") or "(no rule)" if by == "rule" else row[by]


_ORDERS: Final[dict[str, Callable[[Row], Any]]] = {
    "level": lambda row: (-LEVELS.index(row["level"]), -(row["utilization"] or 0.0), row["client_id"]),
    "used": lambda row: (-(row["utilization"] or 0.0), row["client_id"]),
    "usage": lambda row: (-(row["usage"] or 0.0), row["client_id"]),
    "muted": lambda row: (-(row["muted_ms"] or 0.0), row["client_id"]),
    "client": lambda row: (row["client_id"], row["user"], row["quota_key"]),
}
