"""The forms of a command's output. A command that has some of them says which: `Literal[Output.TABLE, Output.JSON]`."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    """`text` is the form of Kafka's own command, `table` is for people, `json` for scripts."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
