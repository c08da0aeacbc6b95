"""Parameters of a request, pages of long lists among them, the errors that answer it, and few log lines about it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import structlog
from starlette.requests import Request

from exporters.printable import printable, shortened

Given: TypeAlias = Mapping[str, str]

Item = TypeVar("Item")

_MAX_CHARS = 4_096
_PAGE_ROWS = 100
_MOST_ROWS = 10_000
_LAST_ROW = 10_000_000
_LOG_EVERY_S = 60.0


class BadRequestError(ValueError):
    """An invalid parameter; the message is one line."""


class UnavailableError(ConnectionError):
    """It cannot be answered now; the message is one line, for the reader."""


def query_of(request: Request) -> dict[str, str]:
    """The parameters. Levels may also be several, as many libraries send a list. Raises BadRequestError for others."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in query and name != "level":
            raise BadRequestError(f"{name} is there more than once")
        query[name] = f"{query[name]},{value}" if name in query else value
    return query


def text_of(query: Given, name: str) -> str:
    """'' when it is missing. Raises BadRequestError."""
    value = query.get(name, "")
    if len(value) > _MAX_CHARS:
        raise BadRequestError(f"{name} is longer than {_MAX_CHARS} characters")
    return value


def number_of(query: Given, name: str, default: int, most: int) -> int:
    """From 0 to `most`. Raises BadRequestError."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text) <= most):
        raise BadRequestError(f"{name} must be a number from 0 to {most}")
    return int(text)


class Paging(NamedTuple):
    """The part of a list that a request asks for: `limit` rows, from the row `offset` on (0 is the first).

    `shown` of `total` rows, once they were read.
    """

    offset: int
    limit: int
    shown: int = 0
    total: int = 0

    @classmethod
    def of(cls, query: Given, offset: str = "offset") -> Self:
        """By the parameters `limit` and that of the offset. Raises BadRequestError."""
        limit = number_of(query, "limit", _PAGE_ROWS, _MOST_ROWS) or _PAGE_ROWS
        return cls(number_of(query, offset, 0, _LAST_ROW), limit)

    @property
    def parameters(self) -> dict[str, str]:
        return {"limit": str(self.limit), "offset": str(self.offset)}

    def cut(self, every: Sequence[Item]) -> Sequence[Item]:
        return every[self.offset : self.offset + self.limit]

    def of_rows(self, shown: int, total: int) -> Self:
        return self._replace(shown=shown, total=max(total, self.offset + shown))


class SparseLog:
    """Log lines about requests, which anyone can send: at most one warning per minute, values of at most `longest`
    characters. `clock` gives monotonic seconds."""

    def __init__(self, name: str, longest: int = 60, clock: Callable[[], float] = time.monotonic) -> None:
        self._log: Any = structlog.get_logger(name)
        self._longest = longest
        self._clock = clock
        self._logged_at_s = -math.inf
        self._not_logged = 0  # since then

    def warning(self, event: str, **values: str) -> None:
        """Values may come from a client: they are escaped and shortened."""
        now_s = self._clock()
        if now_s - self._logged_at_s < _LOG_EVERY_S:
            self._not_logged += 1
            return
        shown = {name: shortened(printable(value), self._longest) for name, value in values.items()}
        self._log.warning(event, **shown, more_since_last_line=self._not_logged)
        self._logged_at_s, self._not_logged = now_s, 0
