"""ClickHouse's error codes: read out of what it said, and turned into HTTP statuses."""

from __future__ import annotations

import re
from enum import IntEnum

# The innermost of nested messages: "Code: 73. DB::Exception: Code: 73. DB::Exception: Unknown format".
_MESSAGE = re.compile(r"(?:Code: \d+\. DB::Exception: )*(Code: (\d+)\. DB::Exception: .*)", re.DOTALL)

# src/Server/HTTP/exceptionCodeToHTTPStatus.cpp; all others are 500. 202 is ours: clickhouse-connect tries a 503 again.
_STATUS = {
    400: (6, 10, 15, 25, 26, 27, 36, 38, 41, 44, 53, 62, 72, 98, 99, 117, 167, 168, 170, 321, 376, 427, 441, 675, 676),
    403: (192, 193, 497, 512, 516),
    404: (46, 47, 50, 56, 60, 63, 73, 78, 81, 106, 115, 336, 511),
    408: (159,),
    413: (552,),
    415: (271,),
    501: (48,),
    503: (76, 202, 209, 439),
}


class Code(IntEnum):
    """What the SQL endpoint itself says (src/Common/ErrorCodes.cpp)."""

    NOT_IMPLEMENTED = 48
    SYNTAX_ERROR = 62
    UNKNOWN_SETTING = 115
    TIMEOUT_EXCEEDED = 159
    TOO_MANY_SIMULTANEOUS_QUERIES = 202
    CANNOT_DECOMPRESS = 271
    ACCESS_DENIED = 497
    QUERY_IS_TOO_LARGE = 552


def code_and_message(text: str) -> tuple[int, str]:
    """The error code and ClickHouse's own words in what the engine, a server or a client of it said; 0 without one."""
    match = _MESSAGE.search(text)
    return (int(match[2]), match[1].strip()) if match else (0, text.strip())


def status_of(code: int) -> int:
    """The HTTP status for an error code."""
    return next((status for status, codes in _STATUS.items() if code in codes), 500)
