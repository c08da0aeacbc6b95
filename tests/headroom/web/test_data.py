"""What the pages ask the store, and how often; queries while it hangs. The store is one that counts."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from exporters.clickhouse.client import ClickHouse, Row
from headroom.web import data, queries
from headroom.web.data import Data, QueryThreads
from headroom.web.parameters import UnavailableError
from tests.kit.grpc_servers import in_loop, until


class CountedStore:
    """Answers every question with what `answer` says, and notes it."""

    nodes = ()
    timeout_s = 1.0

    def __init__(self, answer: Callable[[Mapping[str, Any]], list[Row]]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        self.asked.append((sql, parameters))
        return self._answer(parameters)


def data_of(store: CountedStore, status: Row | None = None) -> Data:
    return Data(cast("ClickHouse", store), list, lambda: status or {}, source="jmx")


def away(_: Mapping[str, Any]) -> list[Row]:
    raise ConnectionError("too slow")


@in_loop
async def test_clients_of_the_week_are_read_once_also_when_that_fails() -> None:
    store = CountedStore(away)
    asked = data_of(store)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="too slow"):
            await asked.seen({"q": "app"})
        with pytest.raises(ConnectionError, match="too slow"):
            await asked.jobs()
    assert [sql for sql, _ in store.asked].count(queries.SEEN) == 1
    assert [sql for sql, _ in store.asked].count(queries.JOBS) == 3
    assert store.asked[0][1]["source"] == "jmx"


@in_loop
async def test_query_that_outlives_its_result_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def wait(_: Mapping[str, Any]) -> list[Row]:
        free.wait(60)
        return [{"cluster": "prod"}]

    monkeypatch.setattr(data, "_SHARED_S", 0.02)  # seconds
    store = CountedStore(wait)
    asked = data_of(store)
    first = asyncio.create_task(asked.jobs())
    await until(lambda: bool(store.asked))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(asked.jobs())
    await asyncio.sleep(0.05)
    free.set()
    assert (await first, await second) == ([{"cluster": "prod"}], [{"cluster": "prod"}])
    await asyncio.sleep(0.05)
    assert await asked.jobs() == [{"cluster": "prod"}]
    assert len(store.asked) == 2


@in_loop
async def test_sparklines_of_many_rows_are_asked_for_in_pieces_that_clickhouse_takes() -> None:
    store = CountedStore(lambda asked: [{"place": 2, "points": [(14, asked["client_ids"][1])]}])
    row = {"cluster": "prod", "source": "jmx", "quota_key": "consumer_byte_rate", "user": "bob", "broker_id": 1}
    lines = await data_of(store).sparklines([{**row, "client_id": f"{number:036d}"} for number in range(5_000)])
    assert all(len(repr(array)) < 128 << 10 for _, asked in store.asked for array in asked.values())
    assert [(number, line) for number, line in enumerate(lines) if line] == [
        (int(asked["client_ids"][1]), [(14, float(asked["client_ids"][1]))]) for _, asked in store.asked
    ]
    assert await data_of(store).sparklines([]) == []


def test_payers_over_budget_come_first_with_their_costs_then_the_costliest() -> None:
    every = [
        {"payer": f"User:{n:02}", "pushes": 1.0, "bytes": 10.0, "points": 100.0 - n, "instances": 2.0}
        for n in range(30)
    ]
    store = CountedStore(lambda parameters: every[: parameters["limit"]])
    over = {"payer": "User:29", "refused": {"requests": 3, "bytes": 4}, "last_refused_ms": 5}
    left_out = {"payer": "10.0.0.9", "exchanges": 7, "last_ms": 1}
    asked = data_of(store, {"over_budget": [over], "left_out": [left_out]})
    rows = asyncio.run(asked.payers({"limit": "5"}))
    assert [sql for sql, _ in store.asked] == [queries.PAYER_COSTS]
    assert [row["payer"] for row in rows] == ["User:29", "10.0.0.9", "User:00", "User:01", "User:02"]
    assert rows[0] == {**over, "not_metered": 0, "pushes": 1, "bytes": 10, "points": 71, "instances": 2}
    assert (rows[1]["not_metered"], rows[1]["points"], rows[2]["refused"]) == (7, 0, {})


@in_loop
async def test_hanging_queries_occupy_only_their_own_threads() -> None:
    hanging, threads = threading.Event(), QueryThreads(most=2, patience_s=0.05)
    queries = [asyncio.create_task(threads.run(hanging.wait)) for _ in range(40)]
    try:
        await until(lambda: sum(query.done() for query in queries) >= 38)
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: "served") == "served"
    finally:
        hanging.set()
    answers = await asyncio.gather(*queries, return_exceptions=True)
    assert [answer for answer in answers if answer is True] == [True] * 2
    assert [type(answer) for answer in answers if answer is not True] == [UnavailableError] * 38
    for _ in range(3):  # an error frees a thread, too
        with pytest.raises(ConnectionError, match="too slow"):
            await threads.run(lambda: away({}))
    assert await threads.run(lambda: 7) == 7
