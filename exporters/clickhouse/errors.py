"""What a statement raises, and ClickHouse's error codes (src/Common/ErrorCodes.cpp): parsed and classified."""

import re

from exporters.printable import one_line

# The innermost of nested messages: "Code: 73. DB::Exception: Code: 73. DB::Exception: Unknown format".
_MESSAGE = re.compile(r"(?:Code: \d+\. [\w:]*Exception: )*(Code: (\d+)\. [\w:]*Exception: .*)", re.DOTALL)

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

# That of the server, "(total)", may suffice later. Of a query or a user fewer rows need less.
_MEMORY_LIMIT_EXCEEDED, _OWN_MEMORY = 241, re.compile(r"(Query|User) memory limit|\(for (query|user)")

TABLE_ALREADY_EXISTS = 57
_NO_SCHEMA = {60: "UNKNOWN_TABLE", 81: "UNKNOWN_DATABASE"}
_LOGIN = {192: "UNKNOWN_USER", 193: "WRONG_PASSWORD", 194: "REQUIRED_PASSWORD", 516: "AUTHENTICATION_FAILED"}
# Between a server and the others of its cluster: another node may reach them.
_NETWORK = {209: "SOCKET_TIMEOUT", 210: "NETWORK_ERROR", 279: "ALL_CONNECTION_TRIES_FAILED"}
_SETTING = {164: "READONLY", 452: "SETTING_CONSTRAINT_VIOLATION"}

_TOO_LARGE = re.compile(r"HTTP driver received HTTP status 413\b")  # without a code: ClickHouse itself did not answer
_HTTPS = re.compile(r"https://[^/]+:8443(/|$)")
_PORT_OF_HTTPS = " (8443 is ClickHouse's port of https; a gateway may have 443, so name the port in the URL)"
_STATUS_OF_PROXY = re.compile(r"HTTP driver received HTTP status (?!40[45])\d+")  # ClickHouse's own have a code
_NO_CLICKHOUSE = re.compile(r"HTTP status 40[45]\b|<html", re.IGNORECASE)
_PATH = " (a gateway may serve it below a path: name it before the database, as in https://gateway/clickhouse/headroom)"

_TEXT_CHARS = 2_000


class StoreError(ConnectionError):
    """A statement failed; the message is one line. `code`: ClickHouse's error code, 0 when it did not answer."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class StoreAwayError(StoreError):
    """The server does not answer, or cannot reach others of its cluster; another node may."""


class StoreLoginError(StoreError):
    """The server knows no such user with this password or certificate."""


class StoreTooLargeError(StoreError):
    """Something before the server refuses requests of this size."""

    def __init__(self, server: str) -> None:
        super().__init__(
            f"a proxy before {server} refuses requests of this size (HTTP 413): raise its limit, in nginx"
            " client_max_body_size"
        )


class StoreTooOldError(StoreError):
    """The server is older than what Headroom supports."""


class StoreSettingError(StoreError):
    """The server, the user's profile or a proxy does not let a statement have the settings that it needs."""


def is_without_schema(error: BaseException | None) -> bool:
    """Whether the store, or what the error comes from, has no database or tables of ours yet: on a first start, and
    while a slow cluster or another gateway's migrations take longer than this one's start."""
    while error is not None:
        if isinstance(error, StoreError) and error.code in _NO_SCHEMA:
            return True
        error = error.__cause__
    return False


def advice(error: Exception) -> str:
    """What a command adds to its message when the store does not listen where it was asked; empty otherwise."""
    if isinstance(error, StoreAwayError) and str(error).endswith("Connection refused"):
        return "; start `headroom serve`, or name its SQL endpoint (sql= in its first line) or your server with --url"
    return ""


def store_error(exc: Exception, server: str, user: str) -> StoreError:
    """What a request to `server` raises for an exception of the client library or of the operating system."""
    code, message = code_and_message(str(exc))
    if code in _LOGIN:
        name = f"user {user!r}" if user else "a client without a user"
        return StoreLoginError(f"{server} refuses {name}: wrong password, or there is no such user", code)
    if code in _SETTING:
        return StoreSettingError(f"{_shortened(message)} (the profile of user {user or 'default'!r})", code)
    if code in _NETWORK:
        return StoreAwayError(f"{server}: {_shortened(message)}")
    if code:
        return StoreError(_shortened(message), code)
    if _TOO_LARGE.match(message):
        return StoreTooLargeError(server)
    first: BaseException = exc
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    hint = _PORT_OF_HTTPS if _HTTPS.match(server) else ""
    if isinstance(first, TimeoutError) and not first.strerror:
        return StoreAwayError(f"cannot reach {server}: no answer in time{hint}")
    if isinstance(first, OSError) and first.strerror:
        return StoreAwayError(f"cannot reach {server}: {first.strerror}{hint}")
    if _STATUS_OF_PROXY.match(message):
        return StoreAwayError(f"a proxy before {server} answers in its place: {_shortened(message)}{hint}")
    if _NO_CLICKHOUSE.search(message):
        return StoreAwayError(f"{server} answers, but not as ClickHouse: {_shortened(message)}{hint or _PATH}")
    return StoreAwayError(f"{server}: {_shortened(one_line(first))}")


def code_and_message(text: str) -> tuple[int, str]:
    """The error code and message of ClickHouse in the text of an error, one line; code 0 if it contains none."""
    match = _MESSAGE.search(text)
    return (int(match[2]), one_line(match[1])) if match else (0, one_line(text))


def is_permanent(code: int, message: str) -> bool:
    """Whether a retry of the same rows always fails."""
    return code in _PERMANENT or (code == _TOO_MANY_PARTS and _ONE_BLOCK in message)


def is_too_large(code: int, message: str) -> bool:
    """Whether fewer rows may pass: these need more memory than a query, or all of the user, may have."""
    return code == _MEMORY_LIMIT_EXCEEDED and _OWN_MEMORY.search(message) is not None


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS else text[:_TEXT_CHARS] + "..."
