"""Parameters of a request, and the errors that answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Given: TypeAlias = Mapping[str, str]

_MAX_CHARS = 4_096


class BadRequestError(ValueError):
    """An invalid parameter; the message is one line."""


class UnavailableError(ConnectionError):
    """It cannot be answered now; the message is one line, for the reader."""


def text_of(given: Given, name: str) -> str:
    """'' when it is missing. Raises BadRequestError."""
    value = given.get(name, "")
    if len(value) > _MAX_CHARS:
        raise BadRequestError(f"{name} is longer than {_MAX_CHARS} characters")
    return value


def number_of(given: Given, name: str, default: int, most: int) -> int:
    """From 0 to `most`. Raises BadRequestError."""
    text = given.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
        raise BadRequestError(f"{name} must be a number from 0 to {most}")
    return int(text)
