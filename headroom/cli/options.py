"""Options of several commands: output formats, and the address of a running `headroom serve`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

HttpAddress = Annotated[
    str,
    typer.Option(envvar="HEADROOM_HTTP_ADDRESS", help="HTTP address of `headroom serve`; token: HEADROOM_WEB__TOKEN."),
]


class Output(StrEnum):
    """`text` is the format of Kafka's own command, `table` is for people, `json` for scripts,
    `markdown` for a pull request, `junit` for a build server.

    A command names those that it has: `Literal[Output.TABLE, Output.JSON]`.
    """

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
