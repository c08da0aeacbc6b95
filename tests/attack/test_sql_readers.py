"""Readers of the SQL endpoint that use all that they may: ingestion, pages and other readers are served meanwhile."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.managed.configuration import ServerSettings
from tests.attack.sql_victim import LONG_ANSWER, SqlVictim, half_sent, sql_victim
from tests.attack.victim import MB, Bystander, p99
from tests.kit.serving import eventually

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

SERVER_BYTES = ServerSettings(Path()).memory_bytes  # the limit of the server; all readers together have half of it
CROSS_JOIN = "SELECT count() FROM numbers(1000000) AS a CROSS JOIN numbers(1000000) AS b WHERE a.number + b.number = 7"
ENDLESS = "SELECT sleepEachRow(0.05) FROM numbers(1000000000) SETTINGS max_block_size = 1"
JOINS = 16
SERVED_TIMES = 5  # until each neighbour was served so often: a fixed time is too short beside other tests
QUERY_S = 4
PAUSE_S = 0.2


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlVictim]:
    with sql_victim(tmp_path_factory.mktemp("readers")) as running:
        yield running


def is_served_or_refused(neighbour: Bystander) -> bool:
    """Whether it was served so often that the attack has shown something, or once not."""
    return len(neighbour.latencies_s) >= SERVED_TIMES or neighbour.refused > 0


def line(name: str, neighbour: Bystander) -> str:
    return (
        f"{name}: {len(neighbour.latencies_s)} times, {neighbour.refused} refused, p99"
        f" {p99(neighbour.latencies_s):.2f} s, slowest {neighbour.worst_s:.2f} s"
    )


def page_and_reader(victim: SqlVictim, stack: contextlib.ExitStack) -> tuple[Bystander, Bystander]:
    """A page of the overview, and another reader."""
    page = stack.enter_context(contextlib.closing(ClickHouse((victim.pages,), timeout_s=60)))
    return (
        Bystander(lambda: page.rows("SELECT count() AS n FROM headroom_now") == [{"n": 0}], PAUSE_S),
        Bystander(lambda: victim.ask("SELECT 1") == (200, "1\n"), PAUSE_S),
    )


def test_page_and_other_readers_are_served_beside_a_greedy_reader(
    victim: SqlVictim, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ingestion goes on as well: the bystander of the attack writes rows."""
    stop = threading.Event()

    def repeat() -> set[int]:
        statuses = set()
        while not stop.is_set():
            statuses.add(victim.ask(None, body=CROSS_JOIN, max_execution_time=QUERY_S)[0])
        return statuses

    with contextlib.ExitStack() as stack:
        neighbours = page_and_reader(victim, stack)
        report = stack.enter_context(victim.attack(f"{JOINS} cross joins of one reader, again and again", capsys))
        pool = stack.enter_context(ThreadPoolExecutor(JOINS))
        running = [pool.submit(repeat) for _ in range(JOINS)]
        stack.callback(stop.set)
        with neighbours[0], neighbours[1]:
            for neighbour in neighbours:
                eventually(partial(is_served_or_refused, neighbour), bool)
            stop.set()
            statuses = set().union(*(repeated.result() for repeated in running))
        lines = [line(*named) for named in zip(("a page", "another reader"), neighbours, strict=True)]
        report.shown = "; ".join([*lines, f"the greedy one is answered {statuses}"])
    assert [neighbour.refused for neighbour in neighbours] == [0, 0]
    assert statuses
    assert 200 not in statuses


def is_refused(client: socket.socket) -> bool:
    """Whether the server has answered with an error: too many wait, or those that run have used the readers' memory."""
    client.settimeout(0)
    try:
        return client.recv(4096, socket.MSG_PEEK).startswith(b"HTTP/1.1 5")
    except BlockingIOError:
        return False


def is_served(victim: SqlVictim) -> bool:
    """Whether another reader gets its whole answer: when memory is short, the server ends one that it has begun."""
    try:
        return victim.ask("SELECT 1") == (200, "1\n")
    except http.client.IncompleteRead:
        return False


def sip(clients: list[socket.socket], stop: threading.Event) -> None:
    """Reads a little of each answer now and then."""
    while not stop.wait(1.0):
        for client in clients:
            with contextlib.suppress(OSError):
                client.recv(64, socket.MSG_DONTWAIT)


@pytest.mark.parametrize("reads", [False, True], ids=["not at all", "slowly"])
def test_slow_readers_and_an_endless_one_do_not_affect_the_service(
    victim: SqlVictim, reads: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most run or wait for their turn and some are refused. The storage process and the pages have queries of their
    own, and another reader is served when those that do not read have used up their time."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        page, _ = page_and_reader(victim, stack)
        tried = f"200 readers of 1 GB who read {'slowly' if reads else 'nothing'}, and one whose query never ends"
        with victim.attack(tried, capsys) as report, page:
            endless = ENDLESS.replace(" ", "+").encode()
            stack.enter_context(half_sent(victim, b"GET /?query=" + endless + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            readers = [stack.enter_context(half_sent(victim, LONG_ANSWER)) for _ in range(200)]
            eventually(lambda: sum(map(is_refused, readers)), lambda count: count > 0)
            refused = sum(map(is_refused, readers))
            if reads:
                threading.Thread(target=sip, args=(readers, stop), daemon=True).start()
            eventually(lambda: is_served_or_refused(page), bool)
            stop.set()
            report.shown = f"{refused} of them are refused; {line('a page', page)}"
        assert page.refused == 0
        assert report.peak_mb < SERVER_BYTES / MB
    eventually(lambda: is_served(victim), bool)


def test_reader_waits_for_its_turn_and_pages_have_their_own(
    victim: SqlVictim, capsys: pytest.CaptureFixture[str]
) -> None:
    """One reader runs more than readers may run at once: pages answer meanwhile, and nobody else is refused."""
    page = ClickHouse((victim.pages,), timeout_s=60)
    with (
        victim.attack("40 cross joins of a reader", capsys) as report,
        ThreadPoolExecutor(40) as pool,
    ):
        joins = [pool.submit(victim.ask, None, body=CROSS_JOIN, max_execution_time=5) for _ in range(40)]
        assert page.rows("SELECT count() AS n FROM headroom_now") == [{"n": 0}]
        assert victim.ask("SELECT 1") == (200, "1\n")
        assert {joined.result()[0] for joined in joins} == {408}
        report.shown = "a page and another reader are answered while 32 run and 8 wait"
