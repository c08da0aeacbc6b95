"""Clients that push unique numbers through the service for as long as checks run, and new clients beside them."""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass

from headroom.demo.processes import Service
from tests.chaos.load import Load
from tests.chaos.wire import WireClient
from tests.kit.loop_thread import LoopThread
from tests.kubernetes.rig import CheckError, Outside, until

CLIENTS = 20
PATIENCE_S = 10.0  # a new client that is not served by then counts as refused
EACH_S = 0.5
ANY_ADDRESS = "0.0.0.0"
STORED_S = 300.0

_STORED = "SELECT DISTINCT toUInt64(value) FROM headroom.client_metrics WHERE metric LIKE 'org.apache.kafka.chaos.%'"


@dataclass
class Newcomers:
    """New clients: each connects, asks for its subscription, and leaves."""

    served: int = 0
    refused: int = 0  # not served within PATIENCE_S, with any number of tries
    slowest_s: float = 0.0


class Traffic(Service):
    """A context manager; `host` is the address of the service."""

    def __init__(self, host: str, port: int) -> None:
        self.newcomers = Newcomers()
        self._address = host, port
        self._load = Load(CLIENTS, lambda: self._address, random.Random(1), source=ANY_ADDRESS)
        self._arrivals: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = LoopThread()
        self._loop.run(self._begin())

    def stop(self) -> None:
        self._loop.run(self._end())
        self._loop.stop()

    def acknowledged(self) -> set[int]:
        """Numbers of all points that a gateway acknowledged until now."""

        async def copied() -> set[int]:
            return set(self._load.ledger.acknowledged)

        return self._loop.run(copied())

    async def _begin(self) -> None:
        self._load.start()
        self._arrivals = asyncio.create_task(self._arrive())

    async def _end(self) -> None:
        assert self._arrivals is not None
        self._arrivals.cancel()
        await self._load.stop()

    async def _arrive(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        while True:
            task = asyncio.create_task(self._newcomer())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(EACH_S)

    async def _newcomer(self) -> None:
        began_s, newcomers = time.monotonic(), self.newcomers  # of the check during which it came
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self._is_served():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            newcomers.refused += 1
            return
        newcomers.served += 1
        newcomers.slowest_s = max(newcomers.slowest_s, time.monotonic() - began_s)

    async def _is_served(self) -> bool:
        try:
            client = await WireClient.connect(*self._address, "new", ANY_ADDRESS)
        except (OSError, EOFError):
            return False
        try:
            return (await client.subscription(bytes(16))).error_code == 0
        except (OSError, EOFError):
            return False
        finally:
            client.close()


class Watched:
    """What the traffic saw from here on. `verdict` is a check's figure, or raises CheckError."""

    def __init__(self, traffic: Traffic, outside: Outside) -> None:
        self._traffic = traffic
        self._outside = outside
        self._before = len(traffic.acknowledged())
        traffic.newcomers = Newcomers()

    def verdict(self) -> str:
        time.sleep(PATIENCE_S)  # until those that wait are served or refused
        newcomers = self._traffic.newcomers
        acknowledged = self._traffic.acknowledged()
        missing = acknowledged

        def nothing_is_missing() -> bool:
            nonlocal missing
            missing = acknowledged - {number for (number,) in self._outside.query(_STORED)}
            return not missing

        with contextlib.suppress(CheckError):  # they are counted
            until(STORED_S, nothing_is_missing, "all acknowledged points are stored")
        pushed = len(acknowledged) - self._before
        said = (
            f"{pushed} points acknowledged, {len(missing)} lost; {newcomers.served} new clients,"
            f" {newcomers.refused} refused, the slowest {newcomers.slowest_s:.1f} s"
        )
        if missing or newcomers.refused or not pushed or not newcomers.served:
            raise CheckError(said)
        return said
