"""The messages between `headroom serve` and its child processes: one JSON object a line.

Every process: the parent writes to its standard input, first its settings, then what changes, {"stop": true} at the
end; end of file without it means that the parent died. The process writes to standard output, first {"ready": true}
with what it reports, or {"error": TEXT}; then its reports.

A network process gets {"config", "cluster", "number"} with {"listeners"}, {"subscriptions", "changed_at_ms",
"telemetry_max_bytes"}, {"token_owners", "token_readings"} and {"addresses_limited"}; then each of these four when it
changes, and {"admitted": [number, answer]} for each {"connect": [number, address, broker]} of its own, to which
{"left": [address, broker]} belongs. It sends {"ask"} when a response named a broker without a listener or a client
authenticated with an unknown token, {"exchanges"} for the usage meter, {"topics"} for that of topics, {"readings",
"records", "payers"} for /metrics and for the table of payers that are over their budgets.
The other processes: storage_process.py, levels_process.py, forward_process.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import orjson
from pydantic import SecretStr

from exporters.model import Exchange
from headroom.config.settings import Address, ServeConfig
from quota_metrics.kafka.cluster import Node
from telemetry.subscriptions.kip714_rules import ClientMetrics

MAX_LINE_BYTES = 64 << 20  # the most that all subscriptions can take as JSON

MAX_PAYERS_SHOWN = 100  # those over their budgets, of each process
ASK_BROKERS, ASK_TOKEN_OWNERS = "brokers", "token_owners"

Message = Mapping[str, Any]

READY: Message = {"ready": True}
STOP: Message = {"stop": True}

_CHANGES = Exchange._fields.index("changes")

_NOT_FOR_NETWORK: Any = {
    "clickhouse_password": True,
    "clickhouse_password_file": True,
    "grpc": True,
    "otlp": True,
    "store": {"server": True},
    "web": True,
}


def line_of(message: Message) -> bytes:
    return orjson.dumps(message, default=_plain) + b"\n"


def message_of(line: bytes) -> dict[str, Any] | None:
    """The decoded message; None at the end of the stream, even in the middle of a line."""
    return dict(orjson.loads(line)) if line.endswith(b"\n") else None


def config_message(config: ServeConfig, listen: Address) -> Message:
    """The settings of a network process: the parent's listen address, no other receivers, no pages and no store."""
    return config.model_dump(exclude=_NOT_FOR_NETWORK) | {"listen": listen.model_dump()}


def listeners_of(message: Message) -> list[list[tuple[Node, int]]]:
    """The brokers' ports of each listener, the main one first."""
    return [[(Node(*node), port) for node, port in listeners] for listeners in message["listeners"]]


def subscriptions_message(rules: ClientMetrics, telemetry_max_bytes: int) -> Message:
    """Subscriptions in the order of the rules, so that all processes compute the same subscription ids, and the largest
    push."""
    names = [*rules.subscriptions, *(name for name in rules.resources if name not in rules.subscriptions)]
    resources = {name: rules.resources[name] for name in names}
    changed = {"subscriptions": resources, "changed_at_ms": rules.changed_at_ms}
    return changed | {"telemetry_max_bytes": telemetry_max_bytes}


def exchanges_of(message: Message) -> Iterator[Exchange]:
    """The exchanges of a network process, with the types that compiled code checks."""
    for exchange in message.get("exchanges", ()):
        exchange[_CHANGES] = tuple(map(tuple, exchange[_CHANGES]))
        yield Exchange(*exchange)


def network_lock(data: Path) -> TextIO:
    """A lock file that each further network process holds (flock, shared) while it runs."""
    return (data / "network.lock").open("w")


def _plain(value: object) -> object:
    if isinstance(value, tuple):  # a NamedTuple, which orjson does not encode
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, SecretStr):  # only the child reads the pipe
        return value.get_secret_value()
    raise TypeError(f"cannot encode a {type(value).__name__}")
