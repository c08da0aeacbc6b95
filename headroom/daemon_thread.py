"""Runs a blocking call beside the event loop, in a thread that nothing waits for."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


async def in_daemon_thread(call: Callable[[], Answer]) -> Answer:
    """As asyncio.to_thread, but after a cancellation neither the loop nor the process waits for `call` when it ends.

    For calls to a server that may freeze. Each has a thread of its own: the caller limits how many run at once.
    """
    return await asyncio.wrap_future(begin_in_daemon_thread(call))


def begin_in_daemon_thread(call: Callable[[], Answer]) -> Future[Answer]:
    """Its result or exception, once there is one. The process does not wait for it when it ends."""
    answer: Future[Answer] = Future()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled: nobody awaits the call
            try:
                answer.set_result(call())
            except BaseException as exc:  # noqa: BLE001 - raised where the answer is read
                answer.set_exception(exc)

    Thread(target=run, daemon=True).start()
    return answer
