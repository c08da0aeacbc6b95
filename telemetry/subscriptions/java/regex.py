r"""A java.util.regex.Pattern for whole-text matches, run by RE2: time linear in the subject, whatever the pattern.

The match criteria of a client metrics subscription are Java patterns without flags. Each construct is rewritten to one
that has the same meaning in RE2 as the original in Java 19+; character sets become code point ranges, so that classes,
flags and case folding do not depend on RE2. UntranslatableError names the construct where that is not possible:
features of backtracking engines (backreferences, lookahead, lookbehind, atomic groups, possessive quantifiers), limits
of RE2 (more than 1000 repetitions, programs over MAX_PROGRAM_BYTES) and rarely used constructs with surprising rules in
Java: intersections (&&), Unicode properties, \G, \X, \N{...}, \b{g}, the flags d, u, x and U, repetition of an empty
expression, `^` under the flag m, and `$` or \Z before the end of the pattern.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import re2

from telemetry.subscriptions.java.characters import (
    ANY,
    MAX_DEPTH,
    NOT_A_LINE_TERMINATOR,
    CharacterReader,
    source,
)
from telemetry.wire.errors import JavaPatternError, UntranslatableError

MAX_SUBJECT_CHARS: Final = 1024
MAX_PROGRAM_BYTES: Final = 2 << 20  # of one compiled pattern
_MAX_REPEAT = 2**31 - 1  # Java's limit; RE2's is 1000

_END = r"(?:\z)"  # of `$` and \Z: see _Translator._end
_LINE_BREAK = r"(?:\r\n|[\n-\r\x{85}\x{2028}\x{2029}])"
_ASSERTIONS = {"A": r"(?:\A)", "z": r"(?:\z)", "b": r"(?:\b)", "B": r"(?:\B)"}
_REFUSED_GROUPS = {
    "(?=": "lookahead",
    "(?!": "negative lookahead",
    "(?<=": "lookbehind",
    "(?<!": "negative lookbehind",
    "(?>": "an atomic group",
}
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_NAMED_REFERENCE = re.compile(r"k<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_COUNTS = re.compile(r"\{([0-9]{1,10})(?:(,)([0-9]{0,10}))?\}")


class JavaPattern:
    """A compiled pattern. `text`: the Java pattern."""

    __slots__ = ("_regexp", "text")

    def __init__(self, text: str, *, captures: bool = False) -> None:
        """Pattern.compile(text); `groups` needs `captures`. Raises JavaPatternError, or its subclass
        UntranslatableError."""
        self.text = text
        try:
            self._regexp = re2.compile(_Translator(_unquoted(text), captures).translate(), _options(captures))
        except re2.error as exc:
            reason = exc.args[0].decode("utf-8", "replace") if exc.args else "refused by RE2"
            raise UntranslatableError(f"cannot express {text!r}: {reason}") from exc

    @property
    def re2(self) -> str:
        """The pattern in RE2's syntax, for another RE2; it matches all of a subject."""
        return rf"\A(?:{_Translator(_unquoted(self.text)).translate()})\z"

    def matches(self, subject: str) -> bool:
        """Matcher.matches() on the first MAX_SUBJECT_CHARS of the subject, whose length clients choose."""
        text = subject[:MAX_SUBJECT_CHARS].encode("utf-8", "replace")
        return self._regexp.fullmatch(text) is not None

    def groups(self, subject: str) -> list[str] | None:
        """Matcher.group(0), group(1), ... when all of the subject matches; '' for a group that took no part."""
        found = self._regexp.fullmatch(subject.encode("utf-8", "replace"))
        if found is None:
            return None
        return [(found[n] or b"").decode() for n in range(self._regexp.groups + 1)]


def _options(captures: bool) -> re2.Options:
    options = re2.Options()
    options.max_mem = MAX_PROGRAM_BYTES
    options.never_capture = not captures
    options.log_errors = False
    return options


def _unquoted(pattern: str) -> str:
    r"""Replaces \Q...\E by escaped characters, like Pattern.RemoveQEQuoting."""
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
        return rf"\x3{character}"  # an unescaped digit would extend a number before the quotation
    return character if character.isalpha() or not character.isascii() else "\\" + character


class _Group(NamedTuple):
    """An open group: the state to restore at its end."""

    flags: frozenset[str]
    ends_before: bool  # an `$` precedes the group
    ends_outside: bool  # in an earlier alternative of the group around it


class _Translator(CharacterReader):
    """Translates a pattern in one pass. Each atom becomes a self-contained expression, so that quantifiers can follow.

    Because the whole text must match, a final `$` is the end of the text: the last line terminator, which Java's `$`
    may precede, would remain unmatched. `_ended`: this alternative contains `$`, so nothing else may follow.
    """

    def __init__(self, text: str, captures: bool = False) -> None:
        super().__init__(text)
        self._capturing = "(" if captures else "(?:"
        self._out: list[str] = []
        self._open: list[_Group] = []
        self._ended = False
        self._ends = False  # an earlier alternative of this group ends in `$`
        self._names: set[str] = set()

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
            self._next_alternative()
        elif first in ("*", "+", "?"):
            raise JavaPatternError(f"dangling meta character {first!r}")
        elif first == "{":
            raise UntranslatableError("cannot express a repetition of an empty expression: '{'")
        elif first == ")":
            self._close_group()
        else:
            self._out.append(self._atom())
            self._out.append(self._quantifier())

    # --- groups

    def _open_group(self) -> None:
        if not self.text.startswith("(?", self.at):
            self._push("(", self._capturing)
            return
        if self.text.startswith("(?:", self.at):
            self._push("(?:")
            return
        for head, name in _REFUSED_GROUPS.items():
            if self.text.startswith(head, self.at):
                raise UntranslatableError(f"cannot express {name}: '{head}'")
        named = _NAMED_GROUP.match(self.text, self.at)
        if named is None:
            self._open_flags()
            return
        if named[1] in self._names:
            raise JavaPatternError(f"named capturing group <{named[1]}> is already defined")
        self._names.add(named[1])
        self._push(named[0], self._capturing)

    def _push(self, head: str, translated: str = "(?:") -> None:
        if len(self._open) >= MAX_DEPTH:
            raise UntranslatableError(f"cannot express more than {MAX_DEPTH} nested groups")
        self._open.append(_Group(self.flags, self._ended, self._ends))
        self._ends = False
        self._out.append(translated)
        self.at += len(head)

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
            self._push(found[0])
        else:
            self.at = found.end()
        self.flags = flags

    def _next_alternative(self) -> None:
        self._out.append(self.next())
        self._ends = self._ends or self._ended
        self._ended = self._open[-1].ends_before if self._open else False

    def _close_group(self) -> None:
        if not self._open:
            raise JavaPatternError("unmatched closing ')'")
        group = self._open.pop()
        self._out.append(self.next())
        self._ended = self._ended or self._ends
        self.flags, self._ends = group.flags, group.ends_outside
        quantifier = self._quantifier()
        if self._ended and quantifier.rstrip("?"):
            raise UntranslatableError("cannot express a repetition of '$'")
        self._out.append(quantifier)

    def _quantifier(self) -> str:
        if self.peek() in ("*", "+", "?"):
            quantifier = self.next()
        elif self.peek() == "{":
            quantifier = self._counts()
        else:
            return ""
        if self.peek() == "+":
            raise UntranslatableError(f"cannot express a possessive quantifier: '{quantifier}+'")
        return quantifier + (self.next() if self.peek() == "?" else "")

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
        if first == "^":
            if "m" in self.flags:
                raise UntranslatableError("cannot express '^' with the flag 'm'")
            return _ASSERTIONS["A"]
        if first == "$":
            return self._end()
        if first == "\\":
            return self._escaped()
        self._check_not_ended()
        if first == "[":
            return source(self.character_class(0))
        if first == ".":
            return source(ANY if "s" in self.flags else NOT_A_LINE_TERMINATOR)
        return self._character(first)

    def _end(self) -> str:
        self._ended = True
        return _END

    def _check_not_ended(self) -> None:
        if self._ended:
            raise UntranslatableError("cannot express '$' or '\\Z' before the end of the pattern")

    def _escaped(self) -> str:
        first = self.peek()
        if first in ("G", "N", "X") or self.text.startswith("b{", self.at):
            raise UntranslatableError(f"cannot express \\{first}")
        if first in _ASSERTIONS:
            return _ASSERTIONS[self.next()]
        if first == "Z":
            self.at += 1
            return self._end()
        if first == "k":
            self._refuse_named_reference()
        if first and first in "123456789":
            raise UntranslatableError(f"cannot express a backreference: '\\{first}'")
        self._check_not_ended()
        if first == "R":
            self.at += 1
            return _LINE_BREAK
        ranges = self.predefined()
        return self._character(self.escaped_character()) if ranges is None else source(ranges)

    def _character(self, character: str) -> str:
        return source(self.cased(character, character))

    def _refuse_named_reference(self) -> None:
        found = _NAMED_REFERENCE.match(self.text, self.at)
        if found is None or found[1] not in self._names:
            raise JavaPatternError("reference to a named group that does not exist")
        raise UntranslatableError(f"cannot express a backreference: '\\{found[0]}'")
