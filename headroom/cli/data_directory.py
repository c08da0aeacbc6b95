"""Shared by commands that read a data directory: its option, error messages, times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headroom.errors import ArgumentError

Data = Annotated[Path, typer.Option(envvar="HEADROOM_DATA", help="The data directory of `headroom serve`.")]
DEFAULT_DATA = Path("headroom-data")


@contextmanager
def one_line_errors(data: Path) -> Iterator[None]:
    """Exits with 1 when the directory or a file cannot be used, with 2 when an argument is invalid."""
    try:
        os.scandir(data).close()  # a misspelt directory is not an empty one
        yield
    except OSError as exc:
        typer.echo(f"headroom: {exc.filename or data}: {exc.strerror or exc}", err=True)
        raise typer.Exit(1) from exc
    except ArgumentError as exc:
        typer.echo(f"headroom: {exc}", err=True)
        raise typer.Exit(2) from exc


def time_text(ms: int) -> str:
    """`2026-11-20 10:00:00.000`, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
