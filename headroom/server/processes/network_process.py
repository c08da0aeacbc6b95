"""A further network process: accepts clients at its parent's ports and writes pushes to its own segments.

Started by network_processes.py; messages.py has the protocol. At {"stop"} it answers the requests in flight and exits;
it exits at once when its parent dies.
"""

import asyncio
import fcntl
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog
import uvloop

from exporters import self_metrics as catalogue
from exporters.model import Exchange, ExchangeValues
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from headroom.logs import configure_logging
from headroom.server.addresses import listening
from headroom.server.periodic import PeriodicTask, run_periodic_tasks
from headroom.server.process_limits import forbid_core_dumps, tune_for_connections
from headroom.server.processes.assembly import (
    ClusterView,
    administrators,
    listener_readings,
    new_gateway,
    open_push_spool,
    push_sync_tasks,
    subscriptions_path,
    subscriptions_task,
    telemetry_receiver,
)
from headroom.server.processes.messages import (
    ASK_BROKERS,
    ASK_TOKEN_OWNERS,
    MAX_PAYERS_SHOWN,
    READY,
    Message,
    listeners_of,
    network_lock,
)
from headroom.server.processes.parent_pipes import ParentPipes, ignore_signals
from quota_metrics.measure.topic_meter import TopicMeter
from quota_metrics.measure.usage_meter import FETCH, PRODUCE, SHARE_FETCH
from telemetry.gateway.connection_limits import AddressGate
from telemetry.gateway.security.sasl_tokens import TokenOwners
from telemetry.gateway.server import Gateway
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.subscriptions.subscription_file import SubscriptionFile

log = structlog.get_logger(__name__)

_REPORT_EVERY_MS = 100
_FOLLOW_EVERY_MS = 10_000  # retries a listener that could not be opened
_METERED = frozenset({PRODUCE, FETCH, SHARE_FETCH})  # for other APIs only throttling is metered
_CHARS_OF_CHANGE = 32  # of one topic, besides its name
_DUE_AT_ROWS = 1_000
_DUE_AT_CHARS = 1 << 18
_MAX_ROWS = 20_000
_MAX_NAME_CHARS = _MAX_ROWS * 256  # bounds memory when clients use names of up to 32 kB


def main() -> int:
    ignore_signals()
    configure_logging()
    tune_for_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve())


async def _serve() -> int:
    parent = await ParentPipes.connect()
    first = await parent.message()
    if first is None:
        return 1
    try:
        async with AsyncExitStack() as stack:
            await _NetworkProcess(first, parent, stack).run()
    except ServeError as exc:
        parent.send({"error": str(exc)})
        return 1
    finally:
        await parent.close()
    return 0


class _NetworkProcess:
    """Built from the parent's first message, opened by `run`; both raise ServeError. `stack` closes it."""

    def __init__(self, first: Message, parent: ParentPipes, stack: AsyncExitStack) -> None:
        self._parent = parent
        self._first = first
        self._listeners = listeners_of(first)
        self._config = ServeConfig(**first["config"])  # the environment is not read again
        if not self._config.core_dumps:
            forbid_core_dumps()
        self._stop = asyncio.Event()
        self._grace_s = 0.0
        self._last_report: Message = {}
        self._file: SubscriptionFile | None = None  # of a sink; a gateway's parent reads the cluster
        fcntl.flock(stack.enter_context(network_lock(self._config.data)), fcntl.LOCK_SH)
        self._exchanges = ExchangeLog(self._send_exchanges)
        self._topics = TopicMeter()
        self._pushes = open_push_spool(self._config, f"pushes.{first['number']}", stack)
        self._receiver = telemetry_receiver(self._config, self._pushes)
        self._take_subscriptions(first)
        self._gateway = self._behind_a_gateway() if self._config.upstream else self._alone()
        opened = stack.pop_all()
        stack.push_async_callback(self._report)  # last, when everything is written
        stack.push_async_exit(opened)
        stack.push_async_callback(lambda: self._gateway.close(self._grace_s))

    async def run(self) -> None:
        await listening(self._gateway.start([]), self._config.listen)
        await self._follow_listeners()
        self._parent.send(READY)
        periodic_tasks = [
            subscriptions_task(self._config, self._receiver.rules, self._refresh),
            *push_sync_tasks(self._pushes, self._config),
            PeriodicTask("tell", _REPORT_EVERY_MS, self._report),
            PeriodicTask("listeners", _FOLLOW_EVERY_MS, self._follow_listeners),
        ]
        await run_periodic_tasks(periodic_tasks, self._stop, self._hear(), Counter())

    def _behind_a_gateway(self) -> Gateway:
        self._asked = AskedAddresses(self._parent.send, is_limited=self._first["addresses_limited"])
        owners = TokenOwners(lambda: self._parent.send({"ask": ASK_TOKEN_OWNERS}))
        owners.replace(self._first["token_owners"])
        return new_gateway(
            self._config,
            self._first["cluster"],
            self._receiver,
            self._pushes,
            observe=self._exchanges.exchange,
            view=ClusterView(self._asked.gate, owners, lambda: self._parent.send({"ask": ASK_BROKERS}), follows=True),
            topics=self._topics.observe,
        )

    def _alone(self) -> Gateway:
        self._file = SubscriptionFile(subscriptions_path(self._config), self._receiver.rules, now_ms)
        self._file.follow()
        cluster = self._first["cluster"]
        answers = SinkAnswers(cluster, self._file, administrators(self._config)).found_at
        # A sink is the only node of its cluster; its listener is the bootstrap listener.
        view = ClusterView(AddressGate(), TokenOwners(), lambda: None, follows=True)
        return new_gateway(self._config, cluster, self._receiver, self._pushes, local=answers, view=view)

    async def _refresh(self) -> None:
        if self._file is not None:
            self._file.follow()

    async def _hear(self) -> None:
        while message := await self._parent.message():
            if "listeners" in message:
                self._listeners = listeners_of(message)
                await self._follow_listeners()
            if "subscriptions" in message:
                self._take_subscriptions(message)
            if "token_owners" in message:
                self._gateway.options.token_owners.replace(message["token_owners"])
            if "addresses_limited" in message:
                self._gateway.options.addresses.is_limited = message["addresses_limited"]
            if "admitted" in message:
                self._asked.answered(*message["admitted"])
            if "stop" in message:
                self._grace_s = self._config.gateway.drain_ms / 1000
                break
        self._stop.set()

    async def _follow_listeners(self) -> None:
        """A listener that cannot be opened here stays open in the other processes and is retried later."""
        try:
            for ports, wanted in zip(self._gateway.all_ports, self._listeners, strict=False):
                await ports.follow(wanted)
        except OSError as exc:
            log.error("cannot open a listener that is open elsewhere", error=str(exc))

    def _take_subscriptions(self, message: Message) -> None:
        self._receiver.rules.replace_all(message["subscriptions"], message["changed_at_ms"])
        self._receiver.telemetry_max_bytes = message["telemetry_max_bytes"]

    async def _report(self) -> None:
        self._send_exchanges()
        values = listener_readings(self._gateway)
        if self._config.upstream:
            values[catalogue.USAGE_LEFT_OUT] = self._exchanges.left_out
        report = {
            "readings": {metric.name: value for metric, value in values.items()},
            "records": self._pushes.records,
            "payers": self._receiver.payers.worst(MAX_PAYERS_SHOWN),
        }
        if report != self._last_report:
            self._last_report = report
            self._parent.send(report)

    def _send_exchanges(self) -> None:
        if not self._parent.is_overfull and (rows := self._exchanges.take()):
            self._parent.send({"exchanges": rows})
        if not self._parent.is_overfull and (counts := self._topics.take()):
            self._parent.send({"topics": counts})


class AskedAddresses:
    """Asks the parent whether the quotas on addresses admit a connection; `gate` is what the gateway asks."""

    def __init__(self, send: Callable[[Message], None], *, is_limited: bool) -> None:
        self.gate = AddressGate(self._ask, lambda address, broker_id: send({"left": [address, broker_id]}), is_limited)
        self._send = send
        self._number = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}

    def answered(self, number: int, answer: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _ask(self, address: str, broker_id: int) -> int:
        self._number += 1
        number, waiting = self._number, asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._send({"connect": [number, address, broker_id]})
        return int(await waiting)


class ExchangeLog:
    """Buffers exchanges until `take`; calls `is_due` when many are buffered. Bounded: `left_out` counts dropped
    ones."""

    def __init__(self, is_due: Callable[[], None]) -> None:
        self.left_out = 0
        self._is_due = is_due
        self._exchanges: list[Exchange] = []
        self._name_chars = 0

    def exchange(self, values: ExchangeValues) -> None:
        """Same signature as quota_metrics.measure.usage_meter.UsageMeter.exchange."""
        exchange = Exchange(*values)
        if exchange.api_key not in _METERED and exchange.throttle_ms <= 0 and not exchange.changes:
            return
        if len(self._exchanges) >= _MAX_ROWS or self._name_chars >= _MAX_NAME_CHARS:
            self.left_out += 1
            return
        self._exchanges.append(exchange)
        self._name_chars += len(exchange.principal) + len(exchange.client_id)
        self._name_chars += sum(len(topic) + _CHARS_OF_CHANGE for topic, *_ in exchange.changes)
        if len(self._exchanges) >= _DUE_AT_ROWS or self._name_chars >= _DUE_AT_CHARS:
            self._is_due()

    def take(self) -> list[Exchange]:
        exchanges, self._exchanges, self._name_chars = self._exchanges, [], 0
        return exchanges


if __name__ == "__main__":
    sys.exit(main())
