"""`python -m tests.powerloss SEED SECONDS CUTS`: power losses at critical moments of a traced run of the sink."""

import logging
import random
import shutil
import sys
from pathlib import Path

import structlog

from tests.powerloss.scenario import Trace, lose_power, traced

DIRECTORY = Path("build/powerloss")  # log, data and trace of a run
_CRITICAL = ("rename", "unlink", "ftruncate", "fsync")


def main(seed: int, seconds: float, cuts: int) -> int:
    """Prints each power loss that lost data, and a summary line; returns 0 when no acknowledged push is missing."""
    if shutil.which("strace") is None:
        print("powerloss: needs strace (Debian: apt-get install strace)", file=sys.stderr)
        return 2
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # torn records are usual
    trace = traced(DIRECTORY.resolve(), seconds)
    rng = random.Random(seed)
    losses = [lose_power(trace, cut, rng) for cut in moments(trace, rng, cuts)]
    for loss in (loss for loss in losses if loss.missing):
        # By number, with the lines of their acknowledgement and durable row.
        pushes = [(n, trace.acknowledged[n], trace.stored.get(n)) for n in sorted(loss.missing)[:10]]
        print(f"lost {pushes} of {loss.acknowledged} acknowledged")
    missing, without_sync = sum(len(loss.missing) for loss in losses), sum(loss.without_sync for loss in losses)
    print(
        f"powerloss cuts={cuts} acknowledged={len(trace.acknowledged)} segments_freed={trace.freed}"
        f" read_from_spool={sum(loss.in_spool for loss in losses)}"
        f" only_in_durable_rows={sum(loss.only_stored for loss in losses)} missing={missing}"
        f" missing_without_sync={without_sync}"
    )
    return 1 if missing or not without_sync else 0


def moments(trace: Trace, rng: random.Random, count: int) -> list[int]:
    """Lines of the log at which the power is lost.

    A third just after an acknowledgement; a third before, during or after a call that changes names, lengths or
    positions, or syncs the directory; a third anywhere.
    """
    first = min(trace.acknowledged.values())
    acknowledged = [line + 1 for line in trace.acknowledged.values()]
    critical = [
        line
        for call in trace.spool_calls
        if call.name.startswith(_CRITICAL) or "positions." in call.opened_as
        for line in (call.begin, call.begin + 1, call.end + 1)
        if line > first
    ]
    anywhere = range(first, trace.lines)
    return [rng.choice((acknowledged, critical, anywhere)[n % 3]) for n in range(count)]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
