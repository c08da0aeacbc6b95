"""Queries of the pages while the store hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headroom.web.parameters import UnavailableError
from headroom.web.query_threads import QueryThreads

PATIENCE_S = 60.0


def test_hanging_queries_occupy_only_their_own_threads() -> None:
    asyncio.run(_hang())


async def _hang() -> None:
    hanging, threads = threading.Event(), QueryThreads(most=2, patience_s=0.05)
    queries = [asyncio.create_task(threads.run(hanging.wait)) for _ in range(40)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while sum(query.done() for query in queries) < 38:
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(lambda: "served") == "served"
    finally:
        hanging.set()
    answers = await asyncio.gather(*queries, return_exceptions=True)
    assert [answer for answer in answers if answer is True] == [True] * 2
    assert [type(answer) for answer in answers if answer is not True] == [UnavailableError] * 38
    for _ in range(3):  # an error frees a thread, too
        with pytest.raises(ConnectionError, match="away"):
            await threads.run(_fail)
    assert await threads.run(lambda: 7) == 7


def _fail() -> None:
    raise ConnectionError("away")
