"""The output formats of commands. A command names those that it has: `Literal[Output.TABLE, Output.JSON]`."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """`text` is the format of Kafka's own command, `table` is for people, `json` for scripts,
    `markdown` for a pull request, `junit` for a build server."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
