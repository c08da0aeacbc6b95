"""The parent's side of the further network processes: starts them, exchanges messages, restarts and stops them.

They listen at the same ports as the parent, which sends them ten times a second what has changed. Their counts are
added to the parent's; counters of ended processes are kept.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import structlog

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from headroom.config.settings import Address, ServeConfig
from headroom.server.metrics import sums
from headroom.server.periodic import PeriodicTask
from headroom.server.processes.address_quotas import AddressQuotas
from headroom.server.processes.child_supervisor import ChildProcess, ChildValues
from headroom.server.processes.messages import (
    ASK_TOKEN_OWNERS,
    MAX_PAYERS_SHOWN,
    Message,
    config_message,
    exchanges_of,
    subscriptions_message,
)
from quota_metrics.measure.connection_quotas import ADMITTED
from quota_metrics.measure.topic_meter import TopicCount
from telemetry.gateway.responses import Observe
from telemetry.gateway.server import Gateway
from telemetry.subscriptions.payer_budgets import PayerUse, merged_uses

log = structlog.get_logger(__name__)

_VALUES = ChildValues("a network process", (sys.executable, "-P", "-m", "headroom.server.processes.network_process"))
_TELL_EVERY_MS = 100
_STOP_GRACE_S = 5.0  # longer than the grace period for requests in flight
_METRICS = {metric.name: metric for metric in catalogue.CATALOGUE}


class NetworkProcesses:
    """The processes beyond the first (`config.processes` - 1). `gateway`: the parent's own, at `address`."""

    def __init__(
        self,
        config: ServeConfig,
        address: Address | None,
        gateway: Gateway,
        observe: Observe,
        addresses: AddressQuotas | None = None,
        topics: Callable[[TopicCount], None] = lambda _: None,
    ) -> None:
        """`observe` and `topics` get what the processes measured."""
        self._config = config_message(config, address) if address else {}
        self._gateway = gateway
        self._observe = observe
        self._topics = topics
        self._addresses = addresses
        self._told: list[Message] = []
        self._children = [_NetworkChild(number, self._first, self._heard) for number in range(1, config.processes)]
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when all accept clients. Raises ServeError."""
        if not self._children:
            return
        self._told = self._state()
        await asyncio.gather(*(child.process.start() for child in self._children))
        self._watching = [asyncio.create_task(child.process.watch()) for child in self._children]

    async def watch(self) -> None:
        """Reads messages and restarts dead processes. Runs until `stop`; returns at once without further processes."""
        await asyncio.gather(*self._watching)

    def task(self) -> PeriodicTask:
        return PeriodicTask("tell", _TELL_EVERY_MS, self.tell)

    async def tell(self) -> None:
        if not self._children:
            return
        before, self._told = self._told, self._state()
        for message in (now for now in self._told if now not in before):
            for child in self._children:
                child.process.send(message)

    async def stop(self, grace_s: float) -> None:
        """Each process answers requests in flight for at most `grace_s`, flushes and exits."""
        ended = await asyncio.gather(*(child.process.stop(grace_s + _STOP_GRACE_S) for child in self._children))
        if not all(ended):
            log.warning("network processes did not end in time", count=ended.count(False))
        await asyncio.gather(*self._watching)  # until their last counts are heard

    @property
    def not_ready_reason(self) -> str | None:
        missing = [child.number for child in self._children if not child.process.alive]
        return f"network process {missing[0]} is not running" if missing else None

    @property
    def records(self) -> int:
        return sum(child.records for child in self._children)

    @property
    def restarts(self) -> int:
        return sum(child.process.restarts for child in self._children)

    def worst_payers(self, count: int) -> list[PayerUse]:
        """The payers of telemetry that all processes together refused most often."""
        own = self._gateway.receiver.payers.worst(MAX_PAYERS_SHOWN)
        return merged_uses([own, *(child.payers for child in self._children)])[:count]

    def readings(self) -> dict[SelfMetric, Values]:
        of_children = sums(child.readings() for child in self._children)
        return {
            catalogue.NETWORK_PROCESSES: 1 + sum(child.process.alive for child in self._children),
            catalogue.NETWORK_RESTARTS: self.restarts,
            **{_METRICS[name]: values for name, values in of_children.items()},
        }

    def _first(self, number: int) -> Message:
        rest = {"config": self._config, "cluster": self._gateway.cluster, "number": number}
        return {**rest, **{key: value for message in self._state() for key, value in message.items()}}

    def _state(self) -> list[Message]:
        """What all processes have in common."""
        receiver, owners = self._gateway.receiver, self._gateway.options.token_owners
        return [
            {"listeners": [list(ports) for ports in self._gateway.all_ports]},
            subscriptions_message(receiver.rules, receiver.telemetry_max_bytes),
            # Also unchanged owners are an answer: a process asks again only after one.
            {"token_owners": owners.owners, "token_readings": owners.readings},
            {"addresses_limited": self._gateway.options.addresses.is_limited},
        ]

    def _heard(self, child: _NetworkChild, message: Message) -> None:
        if self._addresses is not None and ("connect" in message or "left" in message):
            child.answer_address(message, self._addresses)
        if message.get("ask") == ASK_TOKEN_OWNERS:
            self._gateway.options.token_owners.unknown()
        elif "ask" in message:
            self._gateway.ports.unknown()
        for exchange in exchanges_of(message):
            self._observe(exchange)
        for count in message.get("topics", ()):
            self._topics(TopicCount(*count))


class _NetworkChild:
    """One network process, with its counts. `first` builds its first message; `heard` takes messages other than
    counts."""

    def __init__(
        self, number: int, first: Callable[[int], Message], heard: Callable[[_NetworkChild, Message], None]
    ) -> None:
        self.number = number
        self._places: Counter[tuple[str, int]] = Counter()  # of its connections in the quotas on addresses
        self._leave: Callable[[str, int], None] = lambda _address, _broker_id: None
        self.process = ChildProcess(
            replace(_VALUES, title=f"network process {number}"),
            first=lambda: first(number),
            heard=self._take,
            ended=self._ended,
        )
        self._heard = heard
        self._readings: dict[str, Values] = {}  # of the running process
        self._records = 0
        self.payers: list[PayerUse] = []
        self._counted: dict[str, Values] = {}  # counters of ended processes
        self._records_before = 0

    @property
    def records(self) -> int:
        return self._records_before + self._records

    def readings(self) -> dict[str, Values]:
        """Counters of all runs so far, gauges of the running process."""
        return sums((self._counted, self._readings))

    def answer_address(self, message: Message, addresses: AddressQuotas) -> None:
        """Admits or refuses one of its connections, or counts one out."""
        self._leave = addresses.left
        if "left" in message:
            address, broker_id = message["left"]
            self._places[address, broker_id] -= 1
            if self._places[address, broker_id] <= 0:
                del self._places[address, broker_id]
            addresses.left(address, broker_id)
            return
        number, address, broker_id = message["connect"]
        answer = addresses.connect(address, broker_id)
        if answer == ADMITTED:
            self._places[address, broker_id] += 1
        self.process.send({"admitted": [number, answer]})

    def _take(self, message: Message) -> None:
        if "readings" in message:
            self._readings, self._records = message["readings"], message["records"]
            self.payers = [PayerUse(*use) for use in message["payers"]]
        else:
            self._heard(self, message)

    def _ended(self) -> None:
        for place in self._places.elements():
            self._leave(*place)
        self._places.clear()
        self._counted = sums((self._counted, {k: v for k, v in self._readings.items() if k.endswith("_total")}))
        self._records_before += self._records
        self._readings, self._records, self.payers = {}, 0, []
