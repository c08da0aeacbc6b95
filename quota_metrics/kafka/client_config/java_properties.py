"""java.util.Properties.load: the text of a properties file to its entries."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


def decode_properties(content: bytes) -> dict[str, str]:
    """A file, in ISO 8859-1 as Java reads it: other characters are written as \\uXXXX. Values are trimmed, as Kafka's
    clients do. Raises ValueError when Java refuses the text."""
    return {name: java_trim(value) for name, value in parse_properties(content.decode("latin-1")).items()}


def parse_properties(text: str) -> dict[str, str]:
    """The last of equal keys counts. Raises ValueError for a malformed \\uXXXX, as Java does."""
    entries = {}
    for line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        assert match is not None  # each part may be empty
        entries[_unescaped(match[1])] = _unescaped(match[2])
    return entries


def java_trim(text: str) -> str:
    """String.trim: without control characters and blanks at both ends, but with other kinds of space."""
    return text.strip("".join(map(chr, range(0x21))))


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; one that ends with an odd number of backslashes goes on in the next."""
    begun: str | None = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANKS)
        if not begun and line[:1] in ("#", "!"):
            begun = None
            continue
        line = (begun or "") + line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun = line[:-1]
            continue
        if line:
            yield line
        begun = None
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        if escaped == "u":
            raise ValueError(r"\u without four hexadecimal digits")
        return _ESCAPES.get(escaped, escaped)

    units = _ESCAPE.sub(character, text)
    # Java's strings are UTF-16: two escapes may be one character. What is half a character is sent as a question mark.
    return _SURROGATE.sub("?", units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass"))
