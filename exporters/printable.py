"""Makes client-made text safe to print on a terminal."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size


def printable(text: str) -> str:
    """Escapes unprintable characters (control sequences, line ends, direction marks) as Python does."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def one_line(text: object) -> str:
    """An error or a text without its line ends; an error without a message is shown as Python shows it."""
    return " ".join(str(text).split()) or repr(text)


def shortened(text: str, longest: int = 60) -> str:
    """Truncates to `longest` columns of a terminal, the last of which is an ellipsis; wide characters take two."""
    return text if cell_len(text) <= longest else set_cell_size(text, longest - 1) + "\N{HORIZONTAL ELLIPSIS}"
