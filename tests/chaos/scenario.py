"""The run: load, kills at random times, store outage, drain, audit."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headroom.demo.processes import LOOPBACK
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import alter_subscription
from tests.chaos.audit import REFUSALS, Audit, alter_points, audit, rested, stop_merges
from tests.chaos.load import Load
from tests.chaos.victim import Headroom, Server
from tests.kit.network import NETWORK

CLIENTS = 30
INTERVAL_MS = 100  # the shortest that Kafka allows
RETRY = 89
_CLICKHOUSE = "exporters.clickhouse.managed.launcher"
_PATIENCE_S = 180.0


async def managed(upstream: str, directory: Path, rng: random.Random, kills: int) -> Audit:
    """Kills the network processes, the worker and the managed server; then suspends the worker for a while."""
    headroom = Headroom(upstream, directory, None)
    headroom.begin()
    try:
        await headroom.opened()
        load = await loaded(headroom, headroom.sql_port, rng)
        victims = processes_of(headroom, rng) | {
            "managed_server": lambda: kill_managed_server(headroom),
            "hanging_server": lambda: hang_managed_server(headroom, rng),
            "full_store": lambda: refuse_for_a_while(headroom.sql_port, rng),
        }
        killed = await kill(victims, [*victims], rng, kills)
        await headroom.opened()
        await until(lambda: headroom.signal_worker(signal.SIGSTOP), "a worker to stop")
        await fill_the_spool(load)
        headroom.signal_worker(signal.SIGCONT)
        return await concluded(headroom, headroom.sql_port, load, killed)
    finally:
        headroom.stop()


async def served(upstream: str, directory: Path, rng: random.Random, kills: int) -> Audit:
    """The same with a separate server, which is killed as well; then a server outage during which the worker is
    killed."""
    async with before_server(upstream, directory, rng) as (headroom, server, load):
        victims = processes_of(headroom, rng) | {"server": lambda: kill_server(server, headroom)}
        killed = await kill(victims, [*victims, "server"], rng, kills)
        await headroom.opened()
        server.kill()
        await asyncio.sleep(rng.uniform(0, 2.0))
        await kill_worker(headroom)
        await fill_the_spool(load)
        await server.start()
        return await concluded(headroom, server.port, load, killed)


def processes_of(headroom: Headroom, rng: random.Random) -> dict[str, Callable[[], Awaitable[None]]]:
    """How each is killed."""
    return {
        "network": lambda: kill_network(headroom, rng),
        "network_child": lambda: kill_child(headroom, rng),
        "worker": lambda: kill_worker(headroom),
    }


@asynccontextmanager
async def before_server(
    upstream: str, directory: Path, rng: random.Random, **options: Any
) -> AsyncIterator[tuple[Headroom, Server, Load]]:
    """Headroom with a separate server and clients that push. `options`: of Headroom."""
    server = Server(directory)
    headroom = Headroom(upstream, directory, server, **options)
    try:
        await server.start()
        headroom.begin()
        await headroom.opened()
        yield headroom, server, await loaded(headroom, server.port, rng)
    finally:
        headroom.stop()
        server.kill()


async def loaded(headroom: Headroom, sql_port: int, rng: random.Random) -> Load:
    """Runs clients with merges disabled, so that duplicates stay visible."""
    await asyncio.to_thread(stop_merges, sql_port)
    load = Load(CLIENTS, lambda: (LOOPBACK, headroom.kafka_port), rng)
    load.start()
    return load


async def kill(
    victims: Mapping[str, Callable[[], Awaitable[None]]], turns: Sequence[str], rng: random.Random, kills: int
) -> Counter[str]:
    """Kills each victim as often as it has turns, in random order at random times; returns the counts."""
    order = [turns[n % len(turns)] for n in range(kills)]
    rng.shuffle(order)
    for victim in order:
        await asyncio.sleep(rng.uniform(0.1, 3.0))
        await victims[victim]()
    return Counter(order)


async def kill_network(headroom: Headroom, rng: random.Random) -> None:
    """Kills the process and starts it again, as a supervisor would; the next kill may come while it starts."""
    headroom.kill_network()
    await asyncio.sleep(rng.uniform(0, 0.5))
    headroom.begin()
    if rng.random() < 0.8:
        await headroom.opened()


async def kill_child(headroom: Headroom, rng: random.Random) -> None:
    """Its parent restarts it with increasing back-off, so most of the time is spent waiting for it."""
    await headroom.opened()  # a parent gives up if its child dies during start-up
    await until(lambda: headroom.signal_child(NETWORK, signal.SIGKILL), "a network process to kill")
    if rng.random() < 0.8:
        await until(headroom.is_whole, "a network process to start again")


async def kill_worker(headroom: Headroom) -> None:
    """The network process restarts it."""
    await until(lambda: headroom.signal_worker(signal.SIGKILL), "a worker to kill")


async def kill_managed_server(headroom: Headroom) -> None:
    """Not while Headroom starts, because it would give up. Its parent restarts it."""
    await headroom.opened()
    await until(lambda: headroom.signal_child(_CLICKHOUSE, signal.SIGKILL), "a managed server to kill")


async def hang_managed_server(headroom: Headroom, rng: random.Random) -> None:
    """Suspends the process at a random point and resumes it."""
    await headroom.opened()
    await suspend(partial(headroom.signal_child, _CLICKHOUSE), rng.uniform(0, 2.0))


async def suspend(signalled: Callable[[signal.Signals], bool], seconds: float) -> None:
    """Connections stay open without answers; the parent of the process may replace it meanwhile."""
    await until(lambda: signalled(signal.SIGSTOP), "a process to stop")
    await asyncio.sleep(seconds)
    signalled(signal.SIGCONT)


async def settled(headroom: Headroom, load: Load) -> tuple[str, bool]:
    """Ends the load; `rested`."""
    await load.stop()
    counts, is_at_rest = await rested(headroom)
    print(f"{counts} broken_connections={load.ledger.broken} answers={dict(load.ledger.answers)}")
    return counts, is_at_rest


async def refuse_for_a_while(sql_port: int, rng: random.Random) -> None:
    """Inserts of points fail as on a full disk or with too many parts; other tables accept inserts."""
    setting = rng.choice(REFUSALS)
    await until(lambda: alter_points(sql_port, f"MODIFY SETTING {setting}"), "a server that answers")
    await asyncio.sleep(rng.uniform(0, 2.0))
    name = setting.partition(" ")[0]
    await until(lambda: alter_points(sql_port, f"RESET SETTING {name}"), "a server that answers")


async def kill_server(server: Server, headroom: Headroom) -> None:
    """Not while Headroom starts, because start-up needs the store."""
    await headroom.opened()
    server.kill()
    await server.start()


async def fill_the_spool(load: Load) -> None:
    """Fills the spool while no worker reads it, until pushes are answered with 89, which clients retry."""
    load.padding_bytes = 8 << 10
    before = load.ledger.answers[RETRY]
    await until(lambda: load.ledger.answers[RETRY] > before + 5 * CLIENTS, "the spool to be full")
    load.padding_bytes = 0


async def concluded(headroom: Headroom, sql_port: int, load: Load, killed: Counter[str]) -> Audit:
    """Waits until clients retry successfully and the spool drains, then audits and shuts down."""
    before = load.ledger.pushes
    await until(lambda: load.ledger.pushes > before + 10 * CLIENTS, "clients to come back")
    counts, is_at_rest = await settled(headroom, load)
    found = await asyncio.to_thread(audit, sql_port, load.ledger.acknowledged)
    found.killed = killed
    if not is_at_rest:
        found.faults.append(f"received is not written + dropped, and nothing is left to be read: {counts}")
    if status := headroom.stop():
        found.faults.append(f"headroom serve ended with {status}")
    return found


async def subscribe(upstream: str) -> None:
    """Subscribes our clients to all metrics at the shortest interval."""
    configs = {"interval.ms": str(INTERVAL_MS), "metrics": "*", "match": "client_id=chaos-.*"}
    host, _, port = upstream.partition(",")[0].rpartition(":")
    async with aclosing(KafkaAdmin([(host, int(port))])) as admin:
        await admin.describe_cluster()
        await alter_subscription(admin, "chaos", configs)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S:.0f} s for {what}")
        await asyncio.sleep(0.1)
