"""The value of sasl.jaas.config: `some.LoginModule required name="value" other=value;`, as Kafka's JaasConfig reads it.

JaasConfig reads by java.io.StreamTokenizer, whose rules these are: words, strings in double or single quotes with the
escapes of C, and comments. A number is no value without quotes, and a slash outside quotes begins a comment.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
# Of org.apache.kafka.disallowed.login.modules.
_DISALLOWED: Final = (
    "com.sun.security.auth.module.JndiLoginModule",
    "com.sun.security.auth.module.LdapLoginModule",
)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LETTER: Final = r"A-Za-z_$\xa0-\U0010ffff"
# The first that fits. A comment, and a string, that is not closed ends with the text, and with the line.
_TOKEN: Final = re.compile(
    rf"""(?P<space>[\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]*)
    | (?P<number>-?(?=[0-9.])[0-9]*\.?[0-9]*)
    | (?P<word>[{_LETTER}][{_LETTER}\-.0-9]*)
    | (?P<quote>["'])(?P<string>(?:\\(?:.|\Z) | (?!(?P=quote))[^\\\r\n])*)(?:(?P=quote))?
    | (?P<char>.)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.|\Z)", re.DOTALL)


class JaasError(ValueError):
    """Kafka's clients refuse the text; the message names no value, because some are passwords."""


class LoginModule(NamedTuple):
    name: str
    options: dict[str, str]


class _Token(NamedTuple):
    """`text`: of a word or string; None for a number, or another character, which `kind` is."""

    kind: str
    text: str | None


def parse_jaas(text: str) -> LoginModule:
    """Raises JaasError."""
    tokens = _tokens(text)
    modules = []
    for module in tokens:
        flag = next(tokens, None)
        if flag is None or flag.text is None or flag.text.upper() not in _FLAGS:
            raise JaasError("behind the login module there is no control flag, as `required`")
        options = dict(_options(tokens))
        if not module.text:
            raise JaasError("it has no name of a login module")
        modules.append(LoginModule(module.text, options))
    if len(modules) != 1:
        raise JaasError(f"it has {len(modules)} login modules, and has to have one")
    if modules[0].name.strip() in _DISALLOWED:
        raise JaasError(f"Kafka does not allow {modules[0].name}")
    return modules[0]


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
    for match in _TOKEN.finditer(text):
        match match.lastgroup:
            case "space":
                continue
            case "number":
                yield _Token("number", None)
            case "word":
                yield _Token("word", match["word"])
            case "char":
                yield _Token(match["char"], None)
            case _:
                yield _Token("string", _ESCAPE.sub(_unescape, match["string"]))


def _unescape(escape: re.Match[str]) -> str:
    if escape[1] in _ESCAPES:
        return _ESCAPES[escape[1]]
    if not escape[1]:
        return "\uffff"  # Java's end of text
    return chr(int(escape[1], 8)) if escape[1] in "01234567" or len(escape[1]) > 1 else escape[1]
