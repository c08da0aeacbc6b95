"""Blocking calls that neither the event loop nor the process waits for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from headroom.daemon_thread import in_daemon_thread

FROZEN = """
import asyncio, threading
from headroom.daemon_thread import in_daemon_thread

async def main():
    try:
        await asyncio.wait_for(in_daemon_thread(threading.Event().wait), 0.1)
    except TimeoutError:
        print("cancelled", flush=True)

asyncio.run(main())
"""


def test_result_and_exception_of_the_call_arrive_where_it_is_awaited() -> None:
    assert asyncio.run(in_daemon_thread(lambda: threading.current_thread().daemon))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 / 0))


def test_loop_and_process_end_while_a_cancelled_call_blocks_forever() -> None:
    ended = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("cancelled\n", "")


def test_call_that_returns_after_its_loop_was_closed_is_ignored(recwarn: pytest.WarningsRecorder) -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    def call() -> None:
        threads.append(threading.current_thread())
        release.wait()

    async def cancelled() -> None:
        waiting = asyncio.ensure_future(in_daemon_thread(call))
        while not threads:
            await asyncio.sleep(0.001)
        waiting.cancel()

    asyncio.run(cancelled())
    release.set()
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert not recwarn.list  # pytest warns of exceptions in threads
