"""Parameters of a request, pages of long lists among them, and the errors that answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

Given: TypeAlias = Mapping[str, str]

Item = TypeVar("Item")

_MAX_CHARS = 4_096
_PAGE_ROWS = 100
_MOST_ROWS = 10_000
_LAST_ROW = 10_000_000


class BadRequestError(ValueError):
    """An invalid parameter; the message is one line."""


class UnavailableError(ConnectionError):
    """It cannot be answered now; the message is one line, for the reader."""


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
    def of(cls, query: Given, offset: str = "offset") -> Paging:
        """By the parameters `limit` and that of the offset. Raises BadRequestError."""
        limit = number_of(query, "limit", _PAGE_ROWS, _MOST_ROWS) or _PAGE_ROWS
        return cls(number_of(query, offset, 0, _LAST_ROW), limit)

    @property
    def parameters(self) -> dict[str, str]:
        return {"limit": str(self.limit), "offset": str(self.offset)}

    def cut(self, every: Sequence[Item]) -> Sequence[Item]:
        return every[self.offset : self.offset + self.limit]

    def of_rows(self, shown: int, total: int) -> Paging:
        return self._replace(shown=shown, total=max(total, self.offset + shown))
