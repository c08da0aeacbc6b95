"""Makes client-made text safe to print on a terminal."""

from typing import Any

import orjson
from rich.cells import cell_len, set_cell_size


def printable(text: str) -> str:
    """Escapes unprintable characters (control sequences, line ends, direction marks) as Python does."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def json_text(value: Any, option: int = orjson.OPT_INDENT_2) -> str:
    """JSON whose strings have only printable characters: the others are escaped, as JSON allows for all of them.

    Infinity and NaN, which JSON cannot represent, become null. `option`: of orjson.
    """
    text = orjson.dumps(value, option=option).decode()
    if text.isascii() and "\x7f" not in text:
        return text
    chars = []
    for char in text:
        if char.isprintable() or char == "\n":
            chars.append(char)
        else:  # two surrogates for a character beyond the basic plane
            units = char.encode("utf-16-be")
            chars.extend(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return "".join(chars)


def one_line(text: object) -> str:
    """An error or a text without its line ends; an error without a message is shown as Python shows it."""
    return " ".join(str(text).split()) or repr(text)


def shortened(text: str, longest: int = 60) -> str:
    """Truncates to `longest` columns of a terminal, the last of which is an ellipsis; wide characters take two."""
    return text if cell_len(text) <= longest else set_cell_size(text, longest - 1) + "\N{HORIZONTAL ELLIPSIS}"
