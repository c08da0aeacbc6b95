"""Parses characters and character classes of Java patterns into code point ranges. Sans-I/O.

Source: java.util.regex.Pattern. Kafka compiles patterns without UNICODE_CHARACTER_CLASS, so that all POSIX and Perl
classes are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from telemetry.wire.errors import JavaPatternError, UntranslatableError

Ranges: TypeAlias = list[tuple[int, int]]  # first and last code point, both included

MAX_DEPTH: Final = 100  # nesting depth of groups and classes
_LAST = 0x10FFFF
_CONTROLS = {"a": "\x07", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_OCTAL = re.compile(r"[0-3]?[0-7]{1,2}")
_CODE_POINT = re.compile(r"x([0-9a-fA-F]{2})|x\{0*([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})")
_SURROGATES = re.compile(r"u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_PROPERTY = re.compile(r"\{([^}]+)\}|([A-Z])")


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The complement of `ranges`."""
    out: Ranges = []
    start = 0
    for first, last in sorted(ranges):
        if first > start:
            out.append((start, first - 1))
        start = max(start, last + 1)
    if start <= _LAST:
        out.append((start, _LAST))
    return out


def either_case(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """`ranges` with their ASCII letters in both cases (CASE_INSENSITIVE without UNICODE_CASE)."""
    out = list(ranges)
    for first, last in tuple(out):
        for start, end, other in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
            low, high = max(first, start), min(last, end)
            if low <= high:
                out.append((low + other, high + other))
    return out


def source(ranges: Iterable[tuple[int, int]]) -> str:
    """A class that matches one character of `ranges`; without any, an expression that never matches."""
    merged = complement(complement(ranges))
    if not merged:
        return "[^\\x{0}-\\x{10ffff}]"
    if len(merged) == 1 and merged[0][0] == merged[0][1]:
        return _escape(merged[0][0])
    return "[" + "".join(_escape(first) + "-" + _escape(last) for first, last in merged) + "]"


def _escape(code_point: int) -> str:
    return f"\\x{{{code_point:x}}}"


def _of(characters: str) -> Ranges:
    return [(ord(character), ord(character)) for character in characters]


ANY: Final[Ranges] = [(0, _LAST)]
_LINE_TERMINATOR: Final = _of("\n\r\u0085\u2028\u2029")
NOT_A_LINE_TERMINATOR: Final = complement(_LINE_TERMINATOR)

_DIGIT: Ranges = [(0x30, 0x39)]
_LOWER: Ranges = [(0x61, 0x7A)]
_UPPER: Ranges = [(0x41, 0x5A)]
_ALPHA = _LOWER + _UPPER
_ALNUM = _ALPHA + _DIGIT
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20)]
_HORIZONTAL: Ranges = [*_of(" \t\xa0\u1680\u180e\u202f\u205f\u3000"), (0x2000, 0x200A)]
_VERTICAL: Ranges = [(0x0A, 0x0D), *_of("\x85\u2028\u2029")]

# \d \h \s \v \w; the upper case letter is the complement.
PREDEFINED: Final[dict[str, Ranges]] = {
    "d": _DIGIT,
    "h": _HORIZONTAL,
    "s": _SPACE,
    "v": _VERTICAL,
    "w": [*_ALNUM, *_of("_")],
}
PREDEFINED.update({letter.upper(): complement(ranges) for letter, ranges in tuple(PREDEFINED.items())})

# \p{...}
POSIX: Final[dict[str, Ranges]] = {
    "Lower": _LOWER,
    "Upper": _UPPER,
    "ASCII": [(0x00, 0x7F)],
    "Alpha": _ALPHA,
    "Digit": _DIGIT,
    "Alnum": _ALNUM,
    "Punct": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)],
    "Graph": [(0x21, 0x7E)],
    "Print": [(0x20, 0x7E)],
    "Blank": _of(" \t"),
    "Cntrl": [(0x00, 0x1F), (0x7F, 0x7F)],
    "XDigit": [*_DIGIT, (0x41, 0x46), (0x61, 0x66)],
    "Space": _SPACE,
}


class CharacterReader:
    """A reader with a position in a pattern. All methods raise JavaPatternError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.flags: frozenset[str] = frozenset()  # i, m, s

    def peek(self) -> str:
        """The next character, '' at the end."""
        return self.text[self.at : self.at + 1]

    def next(self) -> str:
        """Raises JavaPatternError at the end."""
        first = self.peek()
        if not first:
            raise JavaPatternError("the pattern ends in the middle of a construct")
        self.at += 1
        return first

    def cased(self, first: str, last: str) -> Ranges:
        ranges = [(ord(first), ord(last))]
        return either_case(ranges) if "i" in self.flags else ranges

    def character_class(self, depth: int) -> Ranges:
        """A character class after its '['; nested classes are united with it."""
        if depth > MAX_DEPTH:
            raise UntranslatableError(f"cannot express more than {MAX_DEPTH} nested classes")
        ranges: Ranges = []
        negated, empty = False, True
        while self.peek() != "]" or empty:
            if self.peek() == "^" and self.text[self.at - 1] == "[":
                negated = True
                self.at += 1
                continue
            if self.text.startswith("&&", self.at):
                raise UntranslatableError("cannot express an intersection of character classes: '&&'")
            ranges += self._class_item(depth)
            empty = False
        self.at += 1
        return complement(ranges) if negated else ranges

    def _class_item(self, depth: int) -> Ranges:
        first = self.next()
        if first == "[":
            return self.character_class(depth + 1)
        if first == "\\":
            ranges = self.predefined()
            if ranges is not None:
                return ranges
            first = self.escaped_character()
        last = first
        if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("[", "]"):
            self.at += 1
            last = self.next()
            last = self.escaped_character() if last == "\\" else last
        if last < first:
            raise JavaPatternError(f"illegal character range {first!r}-{last!r}")
        return self.cased(first, last)

    def predefined(self) -> Ranges | None:
        """The set that an escape denotes, None when it denotes a single character."""
        first = self.peek()
        if first in PREDEFINED:
            self.at += 1
            return PREDEFINED[first]
        return self._property() if first in ("p", "P") else None

    def _property(self) -> Ranges:
        negated = self.next() == "P"
        found = _PROPERTY.match(self.text, self.at)
        if found is None:
            raise JavaPatternError("unknown character property")
        name = found[1] or found[2]
        ranges = POSIX.get(name)
        if ranges is None:
            raise UntranslatableError(f"cannot express the character property {name!r}")
        self.at = found.end()
        if "i" in self.flags and name in ("Lower", "Upper"):
            ranges = POSIX["Alpha"]
        return complement(ranges) if negated else ranges

    def escaped_character(self) -> str:
        """The character that an escape denotes."""
        first = self.next()
        if first in _CONTROLS:
            return _CONTROLS[first]
        if first == "0":
            return chr(int(self._taken(_OCTAL, self.at)[0], 8))
        if first == "c":
            return chr(ord(self.next()) ^ 64)
        if first in ("x", "u"):
            return self._code_point()
        if first.isascii() and first.isalnum():
            raise JavaPatternError(f"illegal escape sequence \\{first}")
        return first

    def _code_point(self) -> str:
        pair = _SURROGATES.match(self.text, self.at - 1)
        if pair:
            self.at = pair.end()
            return bytes.fromhex(pair[1] + pair[2]).decode("utf-16-be")
        found = self._taken(_CODE_POINT, self.at - 1)
        code_point = int(found[found.lastindex or 0], 16)
        if code_point > _LAST:
            raise JavaPatternError(f"hexadecimal code point is too big: {code_point:x}")
        return chr(code_point)

    def _taken(self, expected: re.Pattern[str], at: int) -> re.Match[str]:
        found = expected.match(self.text, at)
        if found is None:
            raise JavaPatternError(f"illegal escape sequence {self.text[at : at + 8]!r}")
        self.at = found.end()
        return found
