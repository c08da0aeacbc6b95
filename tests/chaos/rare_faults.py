"""Faults under load that take long or need a preloaded library: processes suspended for a minute, a slow store, clock
steps, files that cannot be read or written, no space for positions or the quarantine.

For each: how many points were acknowledged, how many of them were lost, and how much later clients got their answers.
"""

import asyncio
import contextlib
import errno
import mmap
import random
import signal
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.chaos.audit import Audit
from tests.chaos.load import POINTS_PER_PUSH, Ledger, Pushed
from tests.chaos.scenario import RETRY, before_server, suspend, until
from tests.chaos.store_faults import refuse_rows, replayed
from tests.chaos.victim import Headroom, Server, signal_process

SPOOL_BYTES = 1 << 28  # room for what clients push in some minutes
QUIET_S, STOPPED_S, STEPPED_S, FAILING_S, SLOW_S = 15.0, 60.0, 10.0, 5.0, 20.0
TIMES_SLOWER = 2.0
NOTICEABLE_S = 0.5  # an answer that is later than usual, but not by that much, is not counted as slow
_OLDEST, _CAUGHT_UP_S = "headroom_spool_oldest_record_age_seconds:pushes", 5.0
_RUNS_S, _SLEEPS_S = 0.05, 0.95
READS, WRITES = 1, 2  # as faults.c has them
_SOURCE = Path(__file__).with_name("faults.c")
_MAPPED_BYTES = 4096
_CALLS_AT, _ERROR_AT = 8, 9  # behind the offset of the clock


class Preloaded:
    """What happens to processes that have `environment`, by a library that is preloaded (ld.so(8)).

    Calls on chosen files fail, and the wall clock is set.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        library, faults = directory.absolute() / "faults.so", directory.absolute() / "faults"
        subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)], check=True)
        faults.write_bytes(bytes(_MAPPED_BYTES))
        with faults.open("r+b") as file:
            self._faults = mmap.mmap(file.fileno(), _MAPPED_BYTES)
        self.environment = {"LD_PRELOAD": str(library), "LD_FAULTS": str(faults)}

    @contextlib.asynccontextmanager
    async def failing(self, calls: int, error: int, part: str) -> AsyncIterator[None]:
        """Calls on files fail whose path has this part."""
        named = part.encode() + b"\0"
        self._faults[_ERROR_AT : _ERROR_AT + 1 + len(named)] = bytes([error]) + named
        self._faults[_CALLS_AT] = calls
        try:
            yield
        finally:
            self._faults[_CALLS_AT] = 0

    async def step_clock(self, offset_s: int, seconds: float) -> None:
        """Sets the wall clock, and back after some time. The monotonic clock goes on."""
        self._set_clock(offset_s)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._set_clock(0)

    def _set_clock(self, offset_s: int) -> None:
        self._faults[:_CALLS_AT] = struct.pack("=q", offset_s)


@dataclass
class Window:
    """The pushes that were answered during a fault."""

    fault: str
    pushed: list[Pushed]

    @property
    def acknowledged(self) -> set[int]:
        return {
            point for push in self.pushed if push.code == 0 for point in range(push.first, push.first + POINTS_PER_PUSH)
        }

    @property
    def p99_s(self) -> float:
        return sorted(push.latency_s for push in self.pushed)[int(len(self.pushed) * 0.99)] if self.pushed else 0.0

    def line(self, lost: int, quiet_s: float) -> str:
        retried = sum(push.code == RETRY for push in self.pushed)
        return (
            f"fault {self.fault}: {len(self.acknowledged):,} points acknowledged, {lost} lost,"
            f" {retried:,} of {len(self.pushed):,} pushes asked to retry, answered within p99 {self.p99_s * 1e3:.1f} ms"
            f" (quiet {quiet_s * 1e3:.1f} ms)"
        )


async def rare_faults(upstream: str, directory: Path, rng: random.Random, share: float = 1.0) -> Audit:
    """Each fault once, in random order; prints a line for each, and audits the store after the replay. `share`: of the
    time that each fault lasts otherwise."""
    files = Preloaded(directory)
    options = {"spool_bytes": SPOOL_BYTES, "environment": files.environment}
    async with before_server(upstream, directory, rng, **options) as (headroom, server, load):
        await until(lambda: load.ledger.pushes > 0, "clients to push")
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            f"worker suspended for {share * STOPPED_S:.0f} s": lambda: suspend(
                headroom.signal_worker, share * STOPPED_S
            ),
            f"store suspended for {share * STOPPED_S:.0f} s": lambda: suspend(
                partial(signal_process, server.pid), share * STOPPED_S
            ),
            "slow store": lambda: slow_down(partial(signal_process, server.pid), share * SLOW_S),
            "clock an hour back": lambda: files.step_clock(-3_600, share * STEPPED_S),
            "clock a day ahead": lambda: files.step_clock(86_400, share * STEPPED_S),
            "EIO on reads of the spool": lambda: fail(files, READS, errno.EIO, "/spool/"),
            "EIO on writes to the spool": lambda: fail(files, WRITES, errno.EIO, "/spool/"),
            "no space for positions": lambda: fail(files, WRITES, errno.ENOSPC, "/positions."),
            "no space for the quarantine": lambda: refuse_without_space(files, server, headroom, rng),
        }
        windows = [await watched("none", load.ledger, lambda: asyncio.sleep(share * QUIET_S))]
        for name in rng.sample([*faults], len(faults)):
            windows.append(await watched(name, load.ledger, faults[name]))
            load.is_paused = True  # the next fault begins without what this one left over, however slow the machine is
            await until(lambda: headroom.metrics()[_OLDEST] < _CAUGHT_UP_S, f"the worker to catch up after {name}")
            load.is_paused = False
        found = await replayed(headroom, server, load, directory / "data", 1)
        conclude(windows, found)
        return found


async def watched(fault: str, ledger: Ledger, happen: Callable[[], Awaitable[None]]) -> Window:
    """What clients were answered while it happened."""
    first = len(ledger.log)
    await happen()
    return Window(fault, ledger.log[first:])


def conclude(windows: list[Window], found: Audit) -> None:
    """Prints a line for each window and notes what was lost or slow. The first window is without a fault."""
    quiet_s = windows[0].p99_s
    for window in windows:
        lost = len(window.acknowledged - found.values)
        print(window.line(lost, quiet_s), flush=True)
        if window.p99_s > max(TIMES_SLOWER * quiet_s, quiet_s + NOTICEABLE_S):
            found.faults.append(f"clients were answered late: {window.fault}")


async def slow_down(signalled: Callable[[signal.Signals], bool], seconds: float) -> None:
    """A process that runs for a twentieth of the time: it answers, but late."""
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        await suspend(signalled, _SLEEPS_S)
        await asyncio.sleep(_RUNS_S)


async def fail(files: Preloaded, calls: int, error: int, part: str) -> None:
    async with files.failing(calls, error, part):
        await asyncio.sleep(FAILING_S)


async def refuse_without_space(files: Preloaded, server: Server, headroom: Headroom, rng: random.Random) -> None:
    """Rows are refused, and the pushes that had them cannot be written to the quarantine before there is space."""
    refused = asyncio.create_task(refuse_rows(server, headroom, rng))
    await fail(files, WRITES, errno.ENOSPC, "/quarantine/")
    await refused
