"""What keeps Headroom from starting, or a command from being run, in one line for the user."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that serve nothing need not wait for it
    from headroom.config.settings import Address


class ServeError(Exception):
    """Headroom cannot start; the message is one line."""


class ArgumentError(Exception):
    """A flag cannot be used; the message is one line."""


async def listening(opening: Awaitable[tuple[str, int]], wanted: Address) -> tuple[str, int]:
    """The address that was opened. Raises ServeError: the port is in use, or may not be used."""
    try:
        return await opening
    except OSError as exc:
        # asyncio's own text names the address once more
        raise ServeError(f"cannot listen on {wanted}: {os.strerror(exc.errno) if exc.errno else exc}") from exc
