"""Runs a blocking call beside the event loop, in a thread that nothing waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")


async def in_daemon_thread(call: Callable[[], Answer]) -> Answer:
    """As asyncio.to_thread, but after a cancellation neither the loop nor the process waits for `call` when it ends.

    For calls to a server that may freeze. Each has a thread of its own: the caller limits how many run at once.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def settle(result: Answer | None, failure: BaseException | None) -> None:
        if answer.done():  # cancelled
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(result)  # type: ignore[arg-type] # None only if that is the answer

    def run() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as exc:  # noqa: BLE001 - raised where the call is awaited
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits the call
            loop.call_soon_threadsafe(settle, result, failure)

    Thread(target=run, daemon=True).start()
    return await answer
