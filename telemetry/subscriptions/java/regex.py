r"""A java.util.regex.Pattern for whole-text matches, run by RE2: time linear in the subject, whatever the pattern.

The match criteria of a client metrics subscription are Java patterns without flags. Most of what people write means the
same to both engines and is given to RE2 as it is. What RE2 reads otherwise is refused, and the error names the
construct: flags, lookaround, backreferences, possessive quantifiers, \b, character properties, sets in sets, `$` before
the end. Three constructs are spelled out, because hardly a pattern does without them: `.` (Java has five line
terminators), \s (Java has the vertical tab), \Q...\E.
"""

import re
from typing import Final

import re2

from telemetry.wire.errors import JavaPatternError, UntranslatableError

MAX_SUBJECT_CHARS: Final = 1024
MAX_PROGRAM_BYTES: Final = 2 << 20  # of one compiled pattern
MAX_DEPTH: Final = 100  # of nested groups
_MOST_REPETITIONS: Final = 1000  # RE2's limit

_DOT: Final = r"[^\n\r\x{85}\x{2028}\x{2029}]"
_SPACE: Final = r"\x{20}\t-\r"  # ends with a range: a `-` that follows in a set is a character, as in Java
_COUNTS: Final = re.compile(r"\{([0-9]{1,10})(?:,([0-9]{0,10}))?\}")
_NAMED_GROUP: Final = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_CODE_POINT: Final = re.compile(r"\\x(?:[0-9a-fA-F]{2}|\{[0-9a-fA-F]{1,6}\})")
_SAME_ESCAPES: Final = "aAdDfnrtwWz"  # beside escaped punctuation
_REFUSED_GROUPS: Final = {
    "(?=": "lookahead",
    "(?!": "negative lookahead",
    "(?<=": "lookbehind",
    "(?<!": "negative lookbehind",
    "(?>": "an atomic group",
}
_REFUSED_ESCAPES: Final = {
    "b": r"a word boundary: \b",
    "B": r"a word boundary: \B",
    "p": r"a character property: \p",
    "P": r"a character property: \P",
    "k": r"a backreference: \k",
    "Z": r"\Z: use $ or \z",
} | {digit: rf"a backreference: \{digit}" for digit in "123456789"}


class JavaPattern:
    """A compiled pattern. `re2`: the same in RE2's syntax, for another RE2, matching whole subjects."""

    __slots__ = ("_regexp", "re2")

    def __init__(self, text: str, *, captures: bool = False) -> None:
        """Pattern.compile(text); `groups` needs `captures`. Raises JavaPatternError or UntranslatableError."""
        same = _Scanner(text).pattern()
        self.re2 = rf"\A(?:{same})\z"
        options = re2.Options()
        options.max_mem = MAX_PROGRAM_BYTES
        options.never_capture = not captures
        options.log_errors = False
        try:
            self._regexp = re2.compile(same, options)
        except re2.error as exc:
            reason = exc.args[0].decode("utf-8", "replace") if exc.args else "refused by RE2"
            if reason.startswith(("missing )", "unexpected )")):
                raise JavaPatternError(f"no pattern: {reason}") from exc
            raise UntranslatableError(f"cannot express {text!r}: {reason}") from exc

    def matches(self, subject: str) -> bool:
        """Matcher.matches() on the first MAX_SUBJECT_CHARS of the subject, whose length clients choose."""
        text = subject[:MAX_SUBJECT_CHARS].encode("utf-8", "replace")
        return self._regexp.fullmatch(text) is not None

    def groups(self, subject: str) -> list[str] | None:
        """Matcher.group(0), group(1), ... when all of the subject matches; '' for a group that took no part."""
        match = self._regexp.fullmatch(subject.encode("utf-8", "replace"))
        if match is None:
            return None
        return [(match[number] or b"").decode() for number in range(self._regexp.groups + 1)]


class _Scanner:
    """Walks over a pattern once and refuses what RE2 reads otherwise; RE2 itself refuses what is no pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._depth = 0
        self._repeatable = False  # an expression precedes that a quantifier may follow

    def pattern(self) -> str:
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\\":
                self._escape()
            elif character == "[":
                self._set()
            elif character == "(":
                self._group()
            elif character in "*+?{":
                self._quantifier()
            elif character == "$":
                # Java's also matches before a last line terminator; before the end of the pattern nothing may follow.
                rest = self._text[self._at + 1 :].lstrip("$")
                if rest.strip(")") and (self._depth or not rest.startswith("|")):
                    raise self._refuse("'$' before the end of the pattern")
                self._emit(1, r"\z", repeatable=False)
            elif character == ".":
                self._emit(1, _DOT)
            else:
                self._depth -= character == ")"
                self._emit(1, character, repeatable=character not in "|^")
        return "".join(self._out)

    def _emit(self, length: int, written: str, *, repeatable: bool = True) -> None:
        self._out.append(written)
        self._at += length
        self._repeatable = repeatable

    def _refuse(self, construct: str) -> UntranslatableError:
        return UntranslatableError(f"cannot express {construct}")

    def _escape(self) -> None:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter == "Q":
            end = self._text.find(r"\E", self._at + 2)
            quoted = self._text[self._at + 2 : end if end >= 0 else len(self._text)]
            written = "".join(f"\\x{{{ord(character):x}}}" for character in quoted)
            self._emit(len(quoted) + 4, written, repeatable=self._repeatable or bool(quoted))
        elif letter == "s":
            self._emit(2, f"[{_SPACE}]")
        elif letter == "S":
            self._emit(2, f"[^{_SPACE}]")
        else:
            escape = self._same_escape()
            self._emit(len(escape), escape, repeatable=letter not in ("A", "z"))

    def _same_escape(self) -> str:
        """An escape that both engines read alike."""
        letter = self._text[self._at + 1 : self._at + 2]
        code_point = _CODE_POINT.match(self._text, self._at)
        if code_point:
            return code_point[0]
        if not letter:
            raise JavaPatternError("the pattern ends in the middle of a construct")
        is_punctuation = letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != "_"
        if letter in _SAME_ESCAPES or is_punctuation:
            return "\\" + letter
        raise self._refuse(_REFUSED_ESCAPES.get(letter, f"the escape \\{letter}"))

    def _set(self) -> None:
        """A character class, to its end."""
        begin = self._at
        self._at += 2 if self._text.startswith("[^", begin) else 1
        written = [self._text[begin : self._at]]
        while (character := self._text[self._at : self._at + 1]) != "]" or len(written) == 1:
            if not character:
                raise JavaPatternError("a set that does not end: '['")
            if character in "[]^" or self._text.startswith("&&", self._at):
                raise self._refuse(f"{'&&' if character == '&' else character!r} in a set: escape it")
            if character == "\\":
                space = self._text.startswith(r"\s", self._at)
                escape = r"\s" if space else self._same_escape()
                if escape in (r"\A", r"\z"):
                    raise self._refuse(f"{escape} in a set")
                written.append(_SPACE if space else escape)
                self._at += len(escape)
            else:
                written.append(character)
                self._at += 1
        self._emit(1, "".join(written) + "]")

    def _group(self) -> None:
        text, at = self._text, self._at
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(f"more than {MAX_DEPTH} nested groups")
        for head, name in _REFUSED_GROUPS.items():
            if text.startswith(head, at):
                raise self._refuse(f"{name}: '{head}'")
        named = _NAMED_GROUP.match(text, at)
        head = named[0] if named else "(?:" if text.startswith("(?:", at) else "("
        if head == "(" and text.startswith("(?", at):
            raise self._refuse(f"a flag or group of this kind: {text[at : at + 4]!r}")
        self._emit(len(head), "(" if named else head, repeatable=False)

    def _quantifier(self) -> None:
        counts = _COUNTS.match(self._text, self._at)
        quantifier = counts[0] if counts else self._text[self._at]
        if not self._repeatable:
            raise self._refuse(f"a repetition of nothing: {quantifier!r}")
        if quantifier == "{":
            raise JavaPatternError("'{' that is no number of repetitions: escape it")
        if counts and max(int(count or 0) for count in counts.groups()) > _MOST_REPETITIONS:
            raise self._refuse(f"more than {_MOST_REPETITIONS} repetitions: {quantifier!r}")
        following = self._text[self._at + len(quantifier) :][:1]
        if following == "+":
            raise self._refuse(f"a possessive quantifier: '{quantifier}+'")
        lazy = "?" if following == "?" else ""
        self._emit(len(quantifier + lazy), quantifier + lazy, repeatable=False)
