"""Text that clients made, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Control sequences, line ends, marks of direction and the like as Python escapes them, all else as it is."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shortened(text: str, longest: int = 60) -> str:
    """At most so many characters; an ellipsis stands for the rest."""
    return text if len(text) <= longest else text[: longest - 1] + "\N{HORIZONTAL ELLIPSIS}"
