"""A stand-alone sink of several network processes: one port, one spool, one set of subscriptions, one sum."""

import asyncio
import itertools
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from headroom.demo.processes import LOOPBACK, free_ports
from tests.chaos.load import POINTS_PER_PUSH, Load
from tests.kit.network import NETWORK, processes, push, spread, subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import Served, eventually, is_at_rest, rows
from tests.oracle import administration_oracle as requests

pytestmark = pytest.mark.clickhouse

PROCESSES = 3
VALUES = itertools.count(1 << 40)  # above the values of tests/chaos/load.py


def served(directory: Path, *arguments: str) -> Served:
    return Served(directory, "--processes", str(PROCESSES), *arguments)


@pytest.fixture(scope="module")
def headroom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a subscription that was altered at one process, and that clients get at all of them."""
    with served(tmp_path_factory.mktemp("network")) as running:
        with RawConnection(running.kafka) as connection:
            alter(connection, "everything", {"metrics": "*", "interval.ms": "100"})
        eventually(lambda: intervals(running), lambda found: found == {100})
        yield running


def alter(connection: RawConnection, name: str, keys: dict[str, str]) -> None:
    operations = [(key, requests.SET, value) for key, value in keys.items()]
    body = connection.ask(44, 1, requests.incremental(1, [(requests.CLIENT_METRICS, name, operations)]))
    assert [int(result.error_code) for result in requests.decoded(44, 1, body).responses] == [0]


def intervals(headroom: Served) -> set[int]:
    """Of new clients at all processes."""
    with spread(headroom, PROCESSES) as connections:
        return {subscription(connection)[3] for connection in connections}


def stored(headroom: Served) -> dict[int, int]:
    """Value of a point -> how often it is stored."""
    return dict(rows(headroom.sql, "SELECT toUInt64(value) AS v, count() FROM headroom.points GROUP BY v"))


def test_pushes_to_all_processes_are_stored_and_counted(headroom: Served) -> None:
    accepted, values = "headroom_push_telemetry_total:NONE", []
    before = headroom.metrics().get(accepted, 0)
    with spread(headroom, 12) as connections:
        for connection in connections:
            _, instance_id, subscription_id, _ = subscription(connection)
            values.append(next(VALUES))
            assert push(connection, instance_id, subscription_id, values[-1]) == 0
        eventually(headroom.metrics, lambda found: found["headroom_connections"] == len(connections))
    # at least: the last pushes of another test may be reported only now
    eventually(headroom.metrics, lambda found: found[accepted] >= before + len(values))
    eventually(headroom.metrics, is_at_rest)
    segments = [path.name for path in (headroom.log.parent / "data" / "spool").iterdir()]  # those in use are kept
    writers = {name[1] for text in segments if (name := re.fullmatch(r"\d+-([\w.]+)-\w+-\w+\.spool", text))}
    assert {"pushes", "pushes.1", "pushes.2"} <= writers
    eventually(lambda: len(set(values) - stored(headroom).keys()), lambda lost: lost == 0)
    found = stored(headroom)
    assert {found[value] for value in values} == {1}


def test_client_can_continue_at_another_process(headroom: Served) -> None:
    with spread(headroom, PROCESSES) as connections:
        code, instance_id, subscription_id, _ = subscription(connections[0])
        assert code == 0
        for connection in connections:
            time.sleep(0.1)  # its interval, for connections to the same process
            assert push(connection, instance_id, subscription_id, next(VALUES)) == 0


def test_alteration_through_any_process_is_visible_to_all(headroom: Served) -> None:
    with spread(headroom, PROCESSES) as connections:
        for n, connection in enumerate(connections):
            alter(connection, "known", {"metrics": "a", "interval.ms": str(10_000 + n), "match": "client_id=nobody"})
            for other in connections:
                body = requests.describe(4, [(requests.CLIENT_METRICS, "known", ["interval.ms"])])
                reported = requests.decoded(32, 4, other.ask(32, 4, body))
                assert [entry.value for entry in reported.results[0].configs] == [str(10_000 + n)]


def test_concurrent_alterations_are_all_kept(headroom: Served) -> None:
    with spread(headroom, PROCESSES) as connections:
        names = {f"at-once-{n}" for n in range(len(connections))}
        with ThreadPoolExecutor(len(connections)) as threads:
            work = [
                threads.submit(alter, one, name, {"match": "client_id=nobody"})
                for one, name in zip(connections, names, strict=True)
            ]
        for done in work:
            done.result()
        for connection in connections:
            reported = requests.decoded(74, 0, connection.ask(74, 0, requests.listing(0)))
            assert names <= {listed.resource_name for listed in reported.config_resources}


def test_killed_process_loses_no_acknowledged_push(headroom: Served) -> None:
    before = headroom.metrics()["headroom_network_restarts_total"]
    load = Load(20, lambda: headroom.address, random.Random(1))

    async def until(name: str, value: float) -> None:
        await asyncio.to_thread(eventually, headroom.metrics, lambda metrics: metrics[name] == value)

    async def kill_twice() -> None:
        load.start()
        for _ in range(2):
            await asyncio.sleep(1.5)
            victim = random.Random(2).choice(headroom.children(NETWORK))
            restarts = headroom.metrics()["headroom_network_restarts_total"]
            victim.kill()
            await until("headroom_network_restarts_total", restarts + 1)
            await until("headroom_records_difference", 0)
            await asyncio.to_thread(eventually, headroom.ready, lambda answer: answer[0] == 200)
        await asyncio.sleep(0.5)
        await load.stop()

    asyncio.run(kill_twice())
    eventually(lambda: len(load.ledger.acknowledged - stored(headroom).keys()), lambda lost: lost == 0)
    found, after = stored(headroom), eventually(headroom.metrics, is_at_rest)
    assert {found[value] for value in load.ledger.acknowledged} == {1}
    assert len(load.ledger.acknowledged) == load.ledger.pushes * POINTS_PER_PUSH
    assert load.ledger.broken > 0
    assert after["headroom_network_restarts_total"] - before == 2
    assert after["headroom_network_processes"] == PROCESSES


@pytest.mark.release
def test_children_end_with_a_killed_parent_and_restart_succeeds(tmp_path: Path) -> None:
    [port] = free_ports(1)
    listen = ["--listen", f"{LOOPBACK}:{port}"]
    first = served(tmp_path, *listen)
    second = tmp_path / "second"
    second.mkdir()
    with first:
        children = first.children(NETWORK)
        with pytest.raises(RuntimeError, match=f"cannot listen on {LOOPBACK}:{port}: Address already in use"):
            served(second, *listen).__enter__()
        assert not (second / "data" / "spool").exists()  # it was found before anything was started
        os.kill(first.process.pid, signal.SIGKILL)
        with served(tmp_path, *listen) as again:
            assert psutil.wait_procs(children, timeout=60)[1] == []
            assert len(processes(again)) == PROCESSES
            assert again.stop() == 0
            assert not any(child.is_running() for child in children)
