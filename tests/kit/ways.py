"""Which files of the product run: the ways that ARCHITECTURE.md lists are traced, and compared with its tables."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
_PACKAGES = ("exporters", "headroom", "quota_metrics", "spark_jobs", "telemetry")
_ROW = re.compile(r"^\|([^|]*)\| `([\w/]+\.py)` \|", re.MULTILINE)


@contextmanager
def files_that_run(until: str = "") -> Iterator[set[str]]:
    """Files of which a function is called in the block, in any thread that starts in it. The import of a module is no
    call. `until`: the qualified name of a function with whose return the way ends."""
    files: set[str] = set()
    seen: set[int] = set()
    ended = False

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal ended
        code = frame.f_code
        if event == "return" and code.co_qualname == until:
            ended = True
        if event != "call" or ended or id(code) in seen:
            return
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in _PACKAGES:
            seen.add(id(code))
        elif not _is_imported(frame):
            seen.add(id(code))
            files.add(path.relative_to(ROOT).as_posix())

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _is_imported(frame: FrameType | None) -> bool:
    """Whether a module is being imported by the call: its classes and decorators run then."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
            return True
        frame = frame.f_back
    return False


def listed(heading: str) -> tuple[list[str], list[str]]:
    """The files in a section of ARCHITECTURE.md: those with a number, in their order, and the others."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    start = text.index(f"\n## {heading}")
    rows = _ROW.findall(text[start : text.index("\n## ", start + 1)])
    return [file for number, file in rows if number.strip()], [file for number, file in rows if not number.strip()]
