"""ClickHouse's error codes (src/Common/ErrorCodes.cpp): parsed from messages and classified for inserts."""

from __future__ import annotations

import re

# The innermost of nested messages: "Code: 73. DB::Exception: Code: 73. DB::Exception: Unknown format".
_MESSAGE = re.compile(r"(?:Code: \d+\. DB::Exception: )*(Code: (\d+)\. DB::Exception: .*)", re.DOTALL)

# Codes for values that do not fit: not parsed, out of range, not in an Enum, against a constraint. All other errors can
# be fixed while the rows wait, including a missing column or another type of it (8, 10, 16, 20, 44, 50, 53: a migration
# is missing) and a truncated request (32, 33).
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

# TOO_MANY_PARTS means that merges do not keep up, or that the rows of one block fall into too many partitions.
_TOO_MANY_PARTS, _ONE_BLOCK = 252, "for single INSERT block"

_TEXT_CHARS = 300


def code_and_message(text: str) -> tuple[int, str]:
    """The error code and message of ClickHouse in the text of an error; code 0 if it contains none."""
    match = _MESSAGE.search(text)
    return (int(match[2]), match[1].strip()) if match else (0, text.strip())


def is_permanent(code: int, message: str) -> bool:
    """Whether a retry of the same rows always fails."""
    return code in _PERMANENT or (code == _TOO_MANY_PARTS and _ONE_BLOCK in message)


def error_text(exc: BaseException, name: str) -> str:
    """One line on a request to `name` that failed: the operating system's reason, without the wrapping of libraries."""
    first = exc
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    if isinstance(first, OSError) and first.strerror:
        return f"cannot reach {name}: {first.strerror}"
    text = " ".join(str(exc).split())
    return f"{name}: {text if len(text) <= _TEXT_CHARS else text[:_TEXT_CHARS] + '...'}"
