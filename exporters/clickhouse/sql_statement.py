"""What kind of statement a text is, and where its FORMAT clause and its data stand. Sans-I/O; knows ClickHouse's
lexical rules (src/Parsers/Lexer.cpp) and as little of its grammar as that takes: the engine parses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from exporters.clickhouse.errors import Code

_TOKEN = re.compile(
    r"(?P<space>\s+|(?:--|//|\#[ !])[^\n]*+)"
    r"|(?P<comment>/\*)"
    # What is not closed reaches to the end: never a second look at the same text.
    r"|(?P<string>'(?:[^'\\]++|\\.?|'')*+(?:'|\Z)|‘[^’]*+(?:’|\Z)|\$(?P<tag>\w*+)\$.*?(?:\$(?P=tag)\$|\Z))"
    r"|(?P<quoted>`(?:[^`\\]++|\\.?|``)*+(?:`|\Z)|\"(?:[^\"\\]++|\\.?|\"\")*+(?:\"|\Z)|“[^”]*+(?:”|\Z))"
    r"|(?P<word>[A-Za-z_][\w$]*+)"
    r"|(?P<number>\d[\w.]*+)"
    r"|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")

# Not covered by grants of the engine: they read our memory and the machine's files, or write files.
_REFUSED_CALLS = frozenset({"file", "python"})
_REFUSED_WORDS = frozenset({"OUTFILE", "INFILE"})

_SELECTS = frozenset({"SELECT", "WITH", "FROM", "("})
_SHOWS = frozenset({"SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK", "KILL"})


class StatementError(ValueError):
    """The request cannot be run; `message` is worded as ClickHouse's."""

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        self.message = f"Code: {code.value}. DB::Exception: {text}. ({code.name})"
        super().__init__(self.message)


class Kind(Enum):
    """How a statement is run."""

    SELECT = "select"  # rows, as many as there are
    SHOW = "show"  # rows, few
    INSERT = "insert"  # data follows the statement
    COMMAND = "command"  # no rows


class Token(NamedTuple):
    """A token that is not space. `depth` is the number of brackets around it."""

    kind: str
    text: str
    start: int
    end: int
    depth: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords (upper case), outside of brackets."""
        return self.kind == "word" and self.depth == 0 and self.text.upper() in words


@dataclass(frozen=True, slots=True)
class Statement:
    """`sql` without FORMAT clause and data; `tail` is what stood behind the FORMAT clause; `data_at` is where
    the data of an INSERT begins in the text."""

    kind: Kind
    sql: str
    format: str = ""
    tail: str = ""
    data_at: int = -1
    with_totals: bool = False


def parse(text: str) -> Statement:
    """Raises StatementError: several statements, none, or one that reaches for files or our memory."""
    tokens = _checked(_scan(text))
    first = next(tokens, None)
    if first is None:
        raise StatementError(Code.SYNTAX_ERROR, "Empty query")
    if first.is_word("INSERT"):
        return _insert(text, tokens)
    rest = [first, *tokens]
    end = rest.pop().start if rest[-1].text == ";" else len(text)
    word = first.text.upper()
    if word in _SELECTS and not any(token.is_word("INSERT") for token in rest):
        return _query(Kind.SELECT, text[:end], rest)
    return _query(Kind.SHOW if word in _SHOWS else Kind.COMMAND, text[:end], rest)


def _query(kind: Kind, text: str, tokens: list[Token]) -> Statement:
    with_totals = any(token.kind == "word" and token.text.upper() == "TOTALS" for token in tokens)
    for at in range(len(tokens) - 2, 0, -1):
        word, name = tokens[at], tokens[at + 1]
        ends = at + 2 == len(tokens) or tokens[at + 2].is_word("SETTINGS")
        if word.is_word("FORMAT") and name.kind == "word" and ends:
            return Statement(kind, text[: word.start], name.text, text[name.end :], with_totals=with_totals)
    return Statement(kind, text, with_totals=with_totals)


def _insert(text: str, tokens: Iterator[Token]) -> Statement:
    before: Token | None = None
    for token in tokens:
        if token.is_word("SELECT", "WITH"):
            for _ in tokens:  # to the end, for the checks
                pass
            return Statement(Kind.COMMAND, text)
        if token.is_word("VALUES"):
            return Statement(Kind.INSERT, text[: token.start], "Values", data_at=token.end)
        if before is not None and before.is_word("FORMAT") and token.kind == "word":
            return Statement(Kind.INSERT, text[: before.start], token.text, data_at=_data_at(text, token.end))
        before = token
    return Statement(Kind.COMMAND, text)


def _data_at(text: str, end: int) -> int:
    # ParserInsertQuery: blanks, then at most one line end, belong to the statement; all else is data.
    match = re.compile(r"[ \t\f]*\r?\n?").match(text, end)
    return match.end() if match else end


def _checked(tokens: Iterator[Token]) -> Iterator[Token]:
    before: Token | None = None
    for token in tokens:
        if before is not None and before.text == ";" and before.kind == "other":
            raise StatementError(Code.SYNTAX_ERROR, "Multi-statements are not allowed")
        if token.kind == "word" and token.text.upper() in _REFUSED_WORDS:
            raise StatementError(Code.ACCESS_DENIED, f"{token.text.upper()} is not allowed here")
        if token.text == "(" and before is not None and before.text.strip('`"“”').lower() in _REFUSED_CALLS:
            raise StatementError(Code.ACCESS_DENIED, f"{before.text}() is not allowed here")
        before = token
        yield token


def _scan(text: str) -> Iterator[Token]:
    at, depth = 0, 0
    while match := _TOKEN.match(text, at):
        kind, found = match.lastgroup or "", match[0]
        if kind == "tag":
            kind = "string"
        at = _after_comment(text, match.end()) if kind == "comment" else match.end()
        if kind in ("space", "comment") or (not found.isascii() and kind == "other"):
            continue
        depth -= found in (")", "]", "}")
        yield Token(kind, found, match.start(), match.end(), depth)
        depth += found in ("(", "[", "{")


def _after_comment(text: str, at: int) -> int:
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
