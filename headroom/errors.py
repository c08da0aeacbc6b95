"""Errors that prevent Headroom from starting, or a command from running; messages are one line."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported late: slow, and only `serve` needs it
    from headroom.config.settings import Address


class ServeError(Exception):
    """Headroom cannot start; the message is one line."""


class ArgumentError(Exception):
    """A flag is invalid; the message is one line."""


async def listening(opening: Awaitable[tuple[str, int]], wanted: Address) -> tuple[str, int]:
    """The address that was opened. Raises ServeError: the port is in use, or may not be used."""
    try:
        return await opening
    except OSError as exc:
        # asyncio's message repeats the address
        raise ServeError(f"cannot listen on {wanted}: {os.strerror(exc.errno) if exc.errno else exc}") from exc
