"""Progress of a job on a terminal: one line that is overwritten. Writes nothing if stderr is not a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from rich.console import Console

_EVERY_S = 0.5


@contextmanager
def progress(job: str, context: SparkContext, console: Console | None = None) -> Iterator[None]:
    """Shows on stderr how many tasks of the active stages are complete, until the block ends."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    done = threading.Event()
    with console.status(f"{job}: planning") as status:

        def follow() -> None:
            while not done.wait(_EVERY_S):
                status.update(f"{job}: {_tasks(context)}")

        thread = threading.Thread(target=follow, name=f"{job}-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _tasks(context: SparkContext) -> str:
    tracker = context.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    if not stages:
        return "planning"
    completed, total = sum(info.numCompletedTasks for info in stages), sum(info.numTasks for info in stages)
    names = ", ".join(f"stage {info.stageId}" for info in stages)
    return f"{names}: {completed} of {total} tasks done"
