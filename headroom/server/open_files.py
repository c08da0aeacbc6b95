"""The limit of open files: each client takes one, behind a gateway two."""

from __future__ import annotations

import resource


def allow_open_files() -> None:
    """Raises the soft limit, on most systems 1024 for the sake of select(2), to the hard one. Children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
