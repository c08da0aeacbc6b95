"""The limit of open files: a client takes one, with an upstream connection two."""

from __future__ import annotations

import resource
from typing import Final

HTTP_CONNECTIONS: Final = 256  # at the HTTP address: pages, probes, scrapes


def allow_open_files() -> None:
    """Raises the soft limit, usually 1024 because of select(2), to the hard limit. Children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
