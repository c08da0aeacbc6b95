"""What the checks of a cluster or of a store find, and its lines on a terminal."""

from typing import NamedTuple

from exporters.printable import printable


class Finding(NamedTuple):
    """The result of one check; `advice` says what to do when it is not `ok`, or what to know of a note."""

    ok: bool
    what: str
    advice: str = ""
    is_note: bool = False

    @property
    def result(self) -> str:
        return "note" if self.is_note else "ok" if self.ok else "FAIL"

    @property
    def needed_advice(self) -> str:
        return "" if self.result == "ok" else self.advice

    def lines(self) -> list[str]:
        texts = [f"{self.result:4} {self.what}", f"     {self.needed_advice}"]
        return [printable(text) for text in texts if text.strip()]
