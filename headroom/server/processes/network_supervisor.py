"""The parent's side of the further network processes: starts them, exchanges messages, restarts and stops them.

They listen at the same ports as the parent. Their counts are added to the parent's; counters of ended processes are
kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any

import structlog

from exporters import self_metrics as catalogue
from exporters.model import Exchange
from exporters.self_metrics import SelfMetric, Values
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from headroom.server.metrics import plus
from headroom.server.processes.messages import (
    ASK_TOKEN_OWNERS,
    MAX_LINE_BYTES,
    Message,
    config_message,
    line,
    listeners_message,
    message_of,
    subscriptions_message,
    token_owners_message,
)
from telemetry.gateway.exchanges import Observe
from telemetry.gateway.server import Gateway

log = structlog.get_logger(__name__)

Take = Observe  # receives the exchanges

_START_TIMEOUT_S = 60.0
_RESTART_AFTER_S = 1.0
_RESTART_AFTER_AT_MOST_S = 30.0
_STOP_GRACE_S = 5.0  # longer than the grace period for requests in flight
_METRICS = {metric.name: metric for metric in catalogue.CATALOGUE}


class NetworkProcesses:
    """The processes beyond the first (`config.processes` - 1). `gateway`: the parent's own, at `address`."""

    def __init__(self, config: ServeConfig, address: tuple[str, int], gateway: Gateway, take: Take) -> None:
        self._config = config_message(config, address)
        self._gateway = gateway
        self._take = take
        self._sent_subscriptions: Message = {}
        self._children = [_Child(number, self._first, self._heard) for number in range(1, config.processes)]
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all accept clients. Raises ServeError."""
        if not self._children:
            return
        self._sent_subscriptions = subscriptions_message(self._gateway.receiver.rules)
        for listeners in self._gateway.every_listener:
            listeners.changed = self._send_listeners
        await asyncio.gather(*(child.start() for child in self._children))
        self._watching = [asyncio.create_task(child.watch()) for child in self._children]

    async def watch(self) -> None:
        """Reads messages and restarts dead processes. Runs until `stop`; returns at once without further processes."""
        await asyncio.gather(*self._watching)

    def send_subscriptions(self) -> None:
        """Sends the parent's subscriptions when they have changed."""
        if self._children and (subscriptions := subscriptions_message(self._gateway.receiver.rules)) != (
            self._sent_subscriptions
        ):
            self._sent_subscriptions = subscriptions
            self._send(subscriptions)

    def send_token_owners(self) -> None:
        """Sends the owners of delegation tokens, also unchanged ones: a process asks again only after an answer."""
        self._send(token_owners_message(self._gateway.token_owners))

    async def stop(self, grace_s: float) -> None:
        """Each process answers requests in flight for at most `grace_s`, flushes and exits."""
        for child in self._children:
            child.stop()
        if self._watching:
            _, late = await asyncio.wait(self._watching, timeout=grace_s + _STOP_GRACE_S)
            if late:
                log.warning("network processes did not end in time", count=len(late))
        for child in self._children:
            child.kill()

    @property
    def not_ready_reason(self) -> str | None:
        """Why the service is not ready; None when it is."""
        missing = [child.number for child in self._children if not child.alive]
        return f"network process {missing[0]} is not running" if missing else None

    @property
    def records(self) -> int:
        """Records that the processes have written to the spool, by their last messages."""
        return sum(child.records for child in self._children)

    @property
    def restarts(self) -> int:
        """Number of restarts of all processes."""
        return sum(child.restarts for child in self._children)

    def readings(self) -> dict[SelfMetric, Values]:
        totals: dict[SelfMetric, Values] = {
            catalogue.NETWORK_PROCESSES: 1 + sum(child.alive for child in self._children),
            catalogue.NETWORK_RESTARTS: self.restarts,
        }
        for child in self._children:
            for name, values in child.readings().items():
                metric = _METRICS[name]
                totals[metric] = plus(totals[metric], values) if metric in totals else values
        return totals

    def _first(self, number: int) -> Message:
        rest = {"config": self._config, "cluster": self._gateway.cluster, "number": number}
        return {
            **rest,
            **listeners_message(self._gateway.every_listener),
            **subscriptions_message(self._gateway.receiver.rules),
            **token_owners_message(self._gateway.token_owners),
        }

    def _heard(self, message: Message) -> None:
        if message.get("ask") == ASK_TOKEN_OWNERS:
            self._gateway.token_owners.unknown()
        elif "ask" in message:
            self._gateway.listeners.unknown()
        for exchange in message.get("exchanges", ()):
            self._take(Exchange(*exchange))

    def _send_listeners(self) -> None:
        self._send(listeners_message(self._gateway.every_listener))

    def _send(self, message: Message) -> None:
        for child in self._children:
            child.send(message)


class _Child:
    """One network process. `first` builds its first message; `heard` handles messages other than counts."""

    def __init__(self, number: int, first: Callable[[int], Message], heard: Callable[[Message], None]) -> None:
        self.number = number
        self.alive = False
        self.restarts = 0
        self._first = first
        self._heard = heard
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._readings: dict[str, Values] = {}  # of the running process
        self._records = 0
        self._counted: dict[str, Values] = {}  # counters of ended processes
        self._records_before = 0

    @property
    def records(self) -> int:
        return self._records_before + self._records

    def readings(self) -> dict[str, Values]:
        """Counters of all runs so far, gauges of the running process."""
        return _sum(self._counted, self._readings)

    async def start(self) -> None:
        """Returns when it accepts clients. Raises ServeError."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headroom.server.processes.network_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
        )
        self.send(self._first(self.number))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                first = await self._until_ready(process)
        except TimeoutError as exc:
            self.kill()
            raise ServeError(f"a network process was not ready within {_START_TIMEOUT_S:.0f} s") from exc
        if "ready" not in first:
            code = await process.wait()
            raise ServeError(first.get("error", f"a network process ended with code {code}"))
        self.alive = True

    async def watch(self) -> None:
        """Reads messages and restarts the process when it dies, until `stop`."""
        while self._process is not None:
            await self._hear(self._process)
            self.alive = False
            code = await self._process.wait()
            self._counted = _sum(self._counted, {k: v for k, v in self._readings.items() if k.endswith("_total")})
            self._records_before += self._records
            self._readings, self._records = {}, 0
            if self._stopping.is_set():
                return
            log.error("a network process ended, restarting it", number=self.number, exit_code=code)
            self.restarts += 1
            await self._restart()

    def send(self, message: Message) -> None:
        """Sends a message if the process runs; a process started later gets everything in its first message."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            with contextlib.suppress(RuntimeError, OSError):  # it just ended
                process.stdin.write(line(message))

    def stop(self) -> None:
        """Asks the process to end."""
        self._stopping.set()
        self.send({"stop": True})

    def kill(self) -> None:
        """Kills the process if it is still running."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _restart(self) -> None:
        after_s = _RESTART_AFTER_S
        while not self.alive:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), after_s)
            if self._stopping.is_set():
                return
            try:
                await self.start()
            except ServeError as exc:
                log.error("a network process does not start", number=self.number, error=str(exc))
                after_s = min(2 * after_s, _RESTART_AFTER_AT_MOST_S)

    async def _until_ready(self, process: asyncio.subprocess.Process) -> Message:
        """The message with `ready` or `error`; empty when the process ended before it."""
        while message := await _message(process):
            if "ready" in message or "error" in message:
                return message
            self._take(message)
        return {}

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        while message := await _message(process):
            self._take(message)

    def _take(self, message: Message) -> None:
        if "readings" in message:
            self._readings, self._records = message["readings"], message["records"]
        else:
            self._heard(message)


async def _message(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    assert process.stdout is not None
    return message_of(await process.stdout.readline())


def _sum(some: dict[str, Values], more: dict[str, Values]) -> dict[str, Values]:
    return some | {name: plus(some[name], values) if name in some else values for name, values in more.items()}
