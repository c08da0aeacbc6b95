r"""A java.util.regex.Pattern as a Python one, for a match on the whole text. Sans-I/O.

The match criteria of a client metrics subscription are Java patterns without flags. Each construct is written anew so
that Python's `re` means by it what Java (19+) does; sets of characters become plain code point ranges, so that
classes, flags and case need nothing of `re`. What `re` cannot do, or Java does in a way that nobody would guess, is
refused by name: intersections (&&), Unicode properties, \G, \X, \N{...}, \b{g}, the flags d, u, x and U, a
repetition of nothing, look-behind of variable width, references to a group that is not closed.
"""

from __future__ import annotations

import re
from typing import Final

from telemetry.rules.java.characters import (
    ANY,
    LINE_TERMINATOR,
    MAX_DEPTH,
    NOT_A_LINE_TERMINATOR,
    CharacterReader,
    source,
)
from telemetry.wire.errors import JavaPatternError, UntranslatableError

MAX_SUBJECT_CHARS: Final = 1024
_MAX_REPEAT = 2**31 - 1
_MAX_GROUPS = 99  # what a reference of `re` can say

_LINE = source(LINE_TERMINATOR)
_NOT_IN_CRLF = r"(?!(?<=\r)\n)"
_END = rf"(?:{_NOT_IN_CRLF}(?=(?:\r\n|{_LINE})?\Z))"  # Pattern.Dollar: before the last line terminator, or at the end
_LINE_START = rf"(?:(?:\A|(?<={_LINE}){_NOT_IN_CRLF})(?!\Z))"  # Pattern.Caret: not at the end of the text
_LINE_END = rf"(?:{_NOT_IN_CRLF}(?={_LINE}|\Z))"
_LINE_BREAK = r"(?:\r\n|[\n-\r\x85\u2028\u2029])"
_ASSERTIONS = {"A": r"(?:\A)", "z": r"(?:\Z)", "Z": _END, "b": r"(?:\b)", "B": r"(?:(?!\b))", "R": _LINE_BREAK}
_GROUPS = ("(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!")
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_NAMED_REFERENCE = re.compile(r"k<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_COUNTS = re.compile(r"\{([0-9]{1,10})(?:(,)([0-9]{0,10}))?\}")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Pattern.compile(pattern). Raises JavaPatternError, of which UntranslatableError is one."""
    translated = _Translator(_unquoted(pattern)).translate()
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError) as exc:
        raise UntranslatableError(f"cannot express {pattern!r}: {exc}") from exc


def matches(pattern: re.Pattern[str], subject: str) -> bool:
    """Matcher.matches(), on the first MAX_SUBJECT_CHARS of the subject: clients choose how long it is."""
    return pattern.fullmatch(subject[:MAX_SUBJECT_CHARS]) is not None


def _unquoted(pattern: str) -> str:
    r"""Writes \Q...\E character by character, as Pattern.RemoveQEQuoting does."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith(r"\Q", at):
            end = pattern.find(r"\E", at + 2)
            end = len(pattern) if end < 0 else end
            out += map(_quoted, pattern[at + 2 : end])
            at = end + 2
        else:
            size = 2 if pattern[at] == "\\" else 1
            out.append(pattern[at : at + size])
            at += size
    return "".join(out)


def _quoted(character: str) -> str:
    if character.isdigit() and character.isascii():
        return rf"\x3{character}"  # a bare digit would prolong a number before the quotation
    return character if character.isalpha() or not character.isascii() else "\\" + character


class _Translator(CharacterReader):
    """One pass over the pattern: each atom becomes text that stands for itself, so that quantifiers can follow."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._out: list[str] = []
        self._open: list[tuple[frozenset[str], int]] = []  # flags to go back to, number of the group or 0
        self._groups = 0
        self._closed: set[int] = set()
        self._names: dict[str, int] = {}

    def translate(self) -> str:
        while self.at < len(self.text):
            self._term()
        if self._open:
            raise JavaPatternError("unclosed group")
        return "".join(self._out)

    def _term(self) -> None:
        first = self.peek()
        if first == "(":
            self._open_group()
        elif first == "|":
            self._out.append(self.next())
        elif first in ("*", "+", "?"):
            raise JavaPatternError(f"dangling meta character {first!r}")
        elif first == "{":
            raise UntranslatableError("cannot express a repetition of nothing: '{'")
        else:
            self._out.append(self._close_group() if first == ")" else self._atom())
            self._out.append(self._quantifier())

    # --- groups

    def _open_group(self) -> None:
        if not self.text.startswith("(?", self.at):
            self._groups += 1
            self._push("(", "(", self._groups)
            return
        for head in _GROUPS:
            if self.text.startswith(head, self.at):
                self._push(head, head, 0)
                return
        named = _NAMED_GROUP.match(self.text, self.at)
        if named is None:
            self._open_flags()
            return
        if named[1] in self._names:
            raise JavaPatternError(f"named capturing group <{named[1]}> is already defined")
        self._groups += 1
        self._names[named[1]] = self._groups
        self._push(named[0], "(", self._groups)

    def _push(self, taken: str, written: str, number: int) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise UntranslatableError(f"cannot express more than {MAX_DEPTH} groups in one another")
        self._open.append((self.flags, number))
        self._out.append(written)
        self.at += len(taken)

    def _open_flags(self) -> None:
        found = _FLAGS.match(self.text, self.at)
        if found is None:
            raise JavaPatternError("unknown inline modifier or group type")
        on, off = found[1], found[2] or ""
        for flag in on + off:
            if flag in "dxuUc":
                raise UntranslatableError(f"cannot express the flag {flag!r}")
            if flag not in "ims":
                raise JavaPatternError(f"unknown inline modifier {flag!r}")
        flags = self.flags.union(on).difference(off)
        if found[3] == ":":
            self._push(found[0], "(?:", 0)
        else:
            self.at = found.end()
        self.flags = flags

    def _close_group(self) -> str:
        if not self._open:
            raise JavaPatternError("unmatched closing ')'")
        self.flags, number = self._open.pop()
        self._closed.add(number)
        return self.next()

    def _quantifier(self) -> str:
        if self.peek() in ("*", "+", "?"):
            quantifier = self.next()
        elif self.peek() == "{":
            quantifier = self._counts()
        else:
            return ""
        return quantifier + (self.next() if self.peek() in ("?", "+") else "")

    def _counts(self) -> str:
        found = _COUNTS.match(self.text, self.at)
        if found is None:
            raise JavaPatternError("illegal repetition")
        least = int(found[1])
        most = least if found[2] is None else int(found[3] or _MAX_REPEAT)
        if not least <= most <= _MAX_REPEAT:
            raise JavaPatternError(f"illegal repetition range {found[0]}")
        self.at = found.end()
        return found[0]

    # --- atoms

    def _atom(self) -> str:
        first = self.next()
        if first == "[":
            return source(self.character_class(0))
        if first == ".":
            return source(ANY if "s" in self.flags else NOT_A_LINE_TERMINATOR)
        if first == "^":
            return _LINE_START if "m" in self.flags else _ASSERTIONS["A"]
        if first == "$":
            return _LINE_END if "m" in self.flags else _END
        return self._escaped() if first == "\\" else self._character(first)

    def _escaped(self) -> str:
        first = self.peek()
        if first in ("G", "N", "X") or self.text.startswith("b{", self.at):
            raise UntranslatableError(f"cannot express \\{first}")
        if first in _ASSERTIONS:
            return _ASSERTIONS[self.next()]
        if first == "k":
            return self._named_reference()
        if first and first in "123456789":
            return self._numbered_reference()
        ranges = self.predefined()
        return self._character(self.escaped_character()) if ranges is None else source(ranges)

    def _character(self, character: str) -> str:
        return source(self.cased(character, character)) if "i" in self.flags else re.escape(character)

    def _named_reference(self) -> str:
        found = _NAMED_REFERENCE.match(self.text, self.at)
        if found is None or found[1] not in self._names:
            raise JavaPatternError("reference to a named group that does not exist")
        self.at = found.end()
        return self._reference(self._names[found[1]])

    def _numbered_reference(self) -> str:
        number = int(self.next())
        while self.peek().isdigit() and self.peek().isascii():
            longer = number * 10 + int(self.peek())
            if longer > self._groups:
                break
            self.at += 1
            number = longer
        return self._reference(number)

    def _reference(self, number: int) -> str:
        if number not in self._closed or number > _MAX_GROUPS:
            raise UntranslatableError(f"cannot express a reference to group {number}: it is not closed")
        return f"(?i:\\{number})" if "i" in self.flags else f"(?:\\{number})"
