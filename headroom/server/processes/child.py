"""Ends a child process that works until its standard input closes."""

from __future__ import annotations

import asyncio
import contextlib


async def finish(process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    """Closes the standard input; kills the process after `timeout_s`. Returns whether it ended by itself."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return False
    return True
