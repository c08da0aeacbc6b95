"""The value of sasl.jaas.config: `some.LoginModule required name="value" other=value;`, as Kafka's JaasConfig reads it.

JaasConfig reads by java.io.StreamTokenizer, whose rules these are: words, strings in double or single quotes with the
escapes of C, and comments. A number is no value without quotes, and a slash outside quotes begins a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
# Of org.apache.kafka.disallowed.login.modules.
_DISALLOWED: Final = (
    "com.sun.security.auth.module.JndiLoginModule",
    "com.sun.security.auth.module.LdapLoginModule",
)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_DIGITS: Final = "0123456789"
_OCTAL: Final = "01234567"


class JaasError(ValueError):
    """Kafka's clients refuse the text; the message names no value, because some are passwords."""


class LoginModule(NamedTuple):
    """The one module of a client's login context."""

    name: str
    options: dict[str, str]


class _Token(NamedTuple):
    """`text`: of a word or string; None for a number, or another character, which `kind` is."""

    kind: str
    text: str | None


def parse_jaas(text: str) -> LoginModule:
    """Raises JaasError."""
    modules = list(_modules(_tokens(text)))
    if len(modules) != 1:
        raise JaasError(f"it has {len(modules)} login modules, and has to have one")
    if modules[0].name.strip() in _DISALLOWED:
        raise JaasError(f"Kafka does not allow {modules[0].name}")
    return modules[0]


def _modules(tokens: Iterator[_Token]) -> Iterator[LoginModule]:
    for module in tokens:
        flag = next(tokens, None)
        if flag is None or flag.text is None or flag.text.upper() not in _FLAGS:
            raise JaasError("behind the login module there is no control flag, as `required`")
        options = dict(_options(tokens))
        if not module.text:
            raise JaasError("it has no name of a login module")
        yield LoginModule(module.text, options)


def _options(tokens: Iterator[_Token]) -> Iterator[tuple[str, str]]:
    for key in tokens:
        if key.kind == ";":
            return
        equals, value = next(tokens, None), next(tokens, None)
        if equals is None or equals.kind != "=" or value is None or value.text is None:
            hint = "; a value that begins with a digit, or has other signs than -_$. in it, needs quotes"
            raise JaasError(f"{key.text or 'something without a name'} has no value{hint}")
        if key.text is not None:  # Java takes a number for a key without a name, which nobody asks for
            yield key.text, value.text
    raise JaasError("it does not end with a semicolon")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        char = text[at]
        if char <= " ":
            at += 1
        elif char == "/":
            at = _after_comment(text, at)
        elif char in _DIGITS or char == "." or (char == "-" and text[at + 1 : at + 2] in (*_DIGITS, ".")):
            at = _after_number(text, at)
            yield _Token("number", None)
        elif char == "-":
            at += 1
            yield _Token(char, None)
        elif _is_of_word(char):
            end = at + 1
            while end < len(text) and (_is_of_word(text[end]) or text[end] in (*_DIGITS, ".")):
                end += 1
            yield _Token("word", text[at:end])
            at = end
        elif char in "\"'":
            value, at = _string(text, at)
            yield _Token("string", value)
        else:
            at += 1
            yield _Token(char, None)


def _is_of_word(char: str) -> bool:
    return (char.isascii() and char.isalpha()) or char in "-_$" or char >= "\xa0"


def _after_comment(text: str, at: int) -> int:
    if text[at + 1 : at + 2] == "*":
        return _after_block(text, at + 2)
    while at < len(text) and text[at] not in "\r\n":
        at += 1
    return at


def _after_block(text: str, at: int) -> int:
    """Java does not look whether the first character of a line is the slash that ends the comment."""
    before = ""
    while at < len(text):
        char = text[at]
        at += 1
        if char == "/" and before == "*":
            return at
        if char == "\r":
            char, at = text[at : at + 1], at + 1
        if char == "\n":
            char, at = text[at : at + 1], at + 1
        before = char
    return at


def _after_number(text: str, at: int) -> int:
    at += text[at] == "-"
    dots = 0
    while at < len(text) and (text[at] in _DIGITS or (text[at] == "." and not dots)):
        dots += text[at] == "."
        at += 1
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    """The string whose quote is at `at`, and where the rest begins. One that is not closed ends with its line."""
    quote, at = text[at], at + 1
    out = []
    while at < len(text) and text[at] not in (quote, "\r", "\n"):
        char = text[at]
        at += 1
        if char == "\\":
            char, at = _escape(text, at)
        out.append(char)
    return "".join(out), at + (text[at : at + 1] == quote)


def _escape(text: str, at: int) -> tuple[str, int]:
    """What is behind a backslash: \\377 is the greatest octal one, as in \\4770 only two digits are taken."""
    char = text[at : at + 1]
    if not char:
        return "\uffff", at  # Java's end of text
    if char not in _OCTAL:
        return _ESCAPES.get(char, char), at + 1
    end = at + 1
    while end < len(text) and text[end] in _OCTAL and end - at < (3 if char <= "3" else 2):
        end += 1
    return chr(int(text[at:end], 8)), end
