"""Of several commands: output formats, addresses, the data directory, error messages."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from headroom.errors import ArgumentError

Data = Annotated[Path, typer.Option(envvar="HEADROOM_DATA", help="The data directory of `headroom serve`.")]
DEFAULT_DATA = Path("headroom-data")
Url = Annotated[str, typer.Option(envvar="HEADROOM_URL", help="SQL endpoint or ClickHouse server.")]
URL = "http://127.0.0.1:8123"
HTTP = "127.0.0.1:9644"

HttpAddress = Annotated[
    str,
    typer.Option(envvar="HEADROOM_HTTP_ADDRESS", help="HTTP address of `headroom serve`; token: HEADROOM_WEB__TOKEN."),
]


class Output(StrEnum):
    """`text` is the format of Kafka's own command, `table` is for people, `json` for scripts,
    `markdown` for a pull request, `junit` for a build server.
    A command names those that it has.
    """

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"


TableOrJson = Annotated[Literal[Output.TABLE, Output.JSON], typer.Option(help="A table, or JSON.")]


def warn(*messages: str) -> None:
    """Prints each on a line of standard error."""
    for message in messages:
        typer.echo(f"headroom: {message}", err=True)


def fail(*messages: str, code: int = 1) -> typer.Exit:
    """Prints each on a line of standard error; returns the exit to raise."""
    warn(*messages)
    return typer.Exit(code)


@contextmanager
def one_line_errors(data: Path) -> Iterator[None]:
    """Exits with 1 when the directory or a file cannot be used, with 2 when an argument is invalid."""
    try:
        os.scandir(data).close()  # a misspelt directory is not an empty one
        yield
    except OSError as exc:
        raise fail(f"{exc.filename or data}: {exc.strerror or exc}") from exc
    except ArgumentError as exc:
        raise fail(str(exc), code=2) from exc


def time_text(ms: int) -> str:
    """`2026-11-20 10:00:00.000`, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
