"""ClickHouse's error codes (src/Common/ErrorCodes.cpp): read out of what it said, and what they mean for an insert."""

from __future__ import annotations

import re

# The innermost of nested messages: "Code: 73. DB::Exception: Code: 73. DB::Exception: Unknown format".
_MESSAGE = re.compile(r"(?:Code: \d+\. DB::Exception: )*(Code: (\d+)\. DB::Exception: .*)", re.DOTALL)

# Of values that do not fit: not parsed, out of range, not in an Enum, against a constraint. All others are mended while
# the rows wait. Among them are those of a table that lacks a column or has it with another type (8, 10, 16, 20, 44, 50,
# 53: a migration is missing) and of a request that was cut (32, 33).
_PERMANENT = {
    6: "CANNOT_PARSE_TEXT",
    25: "CANNOT_PARSE_ESCAPE_SEQUENCE",
    26: "CANNOT_PARSE_QUOTED_STRING",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    34: "TOO_LARGE_ARRAY_SIZE",
    38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME",
    43: "ILLEGAL_TYPE_OF_ARGUMENT",
    69: "ARGUMENT_OUT_OF_BOUND",
    70: "CANNOT_CONVERT_TYPE",
    72: "CANNOT_PARSE_NUMBER",
    117: "INCORRECT_DATA",
    131: "TOO_LARGE_STRING_SIZE",
    190: "SIZES_OF_ARRAYS_DONT_MATCH",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    376: "CANNOT_PARSE_UUID",
    395: "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO",
    469: "VIOLATED_CONSTRAINT",
    508: "CANNOT_PARSE_DECIMAL",
    691: "UNKNOWN_ELEMENT_OF_ENUM",
}

# TOO_MANY_PARTS is a server that does not keep up with merges, or one block whose rows fall into too many partitions.
_TOO_MANY_PARTS, _ONE_BLOCK = 252, "for single INSERT block"


def code_and_message(text: str) -> tuple[int, str]:
    """The error code and ClickHouse's own words in what a server or a client of it said; 0 without one."""
    match = _MESSAGE.search(text)
    return (int(match[2]), match[1].strip()) if match else (0, text.strip())


def is_permanent(code: int, message: str) -> bool:
    """Whether the same rows fail in the same way each time."""
    return code in _PERMANENT or (code == _TOO_MANY_PARTS and _ONE_BLOCK in message)
