"""Victims: unthrottled clients that a heavy neighbour slows down.

A neighbour is heavy when it takes at least half of the broker's bytes in the newest window. An earlier window is quiet
when the neighbour had less than half of that rate. The requests of a victim take at least twice as long as the median
of three or more quiet windows, and at least 100 ms longer. Only producers are victims: a Fetch waits for records.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple, TypeAlias

from exporters.model import BYTE_KEYS
from quota_metrics.amounts import duration_text

LOOKBACK_WINDOWS: Final = 200
_HEAVY: Final = 0.5  # share of a broker's bytes from which a client is heavy
_BUSY: Final = 0.5  # share of its newest rate from which it was busy in an earlier window
_QUIET_WINDOWS: Final = 3
_FACTOR: Final = 2.0
LEAST_MS: Final = 100.0

Broker: TypeAlias = tuple[str, str, int]  # cluster, source, broker_id
Client: TypeAlias = tuple[str, str]  # user, client_id


class ClientUsage(NamedTuple):
    """What a client used of a quota at a broker in a window. `is_throttled`: by the wire, or by its own report."""

    broker: Broker
    client: Client
    quota_key: str
    window_start_ms: int
    usage: float
    is_throttled: bool


class HeavyClient(NamedTuple):
    """Who takes most of a broker in the newest window, and when it was busy there."""

    client: Client
    rate: float
    busy_at: set[int]  # begins of windows


class Victim(NamedTuple):
    """Whose requests another client makes slow, at which broker."""

    cluster: str
    source: str
    user: str
    client_id: str
    slowed_by_user: str
    slowed_by_client_id: str
    slowed_at_broker_id: int
    latency_ms: float
    latency_before_ms: float  # the median while that client was not busy


def is_heavy(rate: float, of_broker: float) -> bool:
    """Whether who takes most of a broker takes so much that others may wait."""
    return rate > 0 and rate >= _HEAVY * of_broker


def is_busy(rate: float, newest_rate: float) -> bool:
    """Whether a heavy client was busy in an earlier window, too."""
    return rate >= _BUSY * newest_rate


def slowed_text(latency_ms: float, before_ms: float) -> str:
    """`requests take up to 900 ms, 20 ms before`."""
    return f"requests take up to {duration_text(latency_ms)}, {duration_text(before_ms)} before"


def heavy_clients(usage: Iterable[ClientUsage], newest_ms: int) -> dict[Broker, HeavyClient]:
    """The heavy client of each broker that has one; of two with half of the bytes, the first by name."""
    rates: defaultdict[tuple[Broker, int, Client], float] = defaultdict(float)
    for row in usage:
        if row.quota_key in BYTE_KEYS:
            rates[row.broker, row.window_start_ms, row.client] += row.usage
    newest: defaultdict[Broker, list[tuple[float, Client]]] = defaultdict(list)
    for (broker, start_ms, client), rate in rates.items():
        if start_ms == newest_ms:
            newest[broker].append((-rate, client))
    heavy = {}
    for broker, ranked in newest.items():
        most, client = -min(ranked)[0], min(ranked)[1]
        if is_heavy(most, -sum(rate for rate, _ in ranked)):
            heavy[broker] = HeavyClient(client, most, set())
    for (broker, start_ms, client), rate in rates.items():
        if broker in heavy and client == heavy[broker].client and is_busy(rate, heavy[broker].rate):
            heavy[broker].busy_at.add(start_ms)
    return heavy


def calm_clients(usage: Iterable[ClientUsage], newest_ms: int) -> dict[tuple[str, str, Client], set[Broker]]:
    """Clients that nothing throttles in the newest window, by cluster, source and name, with their brokers."""
    brokers: defaultdict[tuple[str, str, Client], set[Broker]] = defaultdict(set)
    throttled = set()
    for row in usage:
        if row.window_start_ms == newest_ms:
            client = (row.broker[0], row.broker[1], row.client)
            brokers[client].add(row.broker)
            if row.is_throttled:
                throttled.add(client)
    return {client: at for client, at in brokers.items() if client not in throttled}


def slowed(latencies_ms: Mapping[int, float], busy_at: Set[int], newest_ms: int) -> tuple[float, float] | None:
    """The client's latency in the newest window and before, if a client that is busy in these windows raised it.

    `latencies_ms`: its greatest request latency by the begin of the window."""
    quiet = sorted([latency for start_ms, latency in latencies_ms.items() if start_ms not in busy_at])
    during = latencies_ms.get(newest_ms)
    if during is None or len(quiet) < _QUIET_WINDOWS:
        return None
    before = quiet[len(quiet) // 2]
    return (during, before) if during >= _FACTOR * before and during >= before + LEAST_MS else None


def victims(
    usage: Iterable[ClientUsage], latencies_ms: Mapping[tuple[str, str, Client], Mapping[int, float]], newest_ms: int
) -> list[Victim]:
    """Of several heavy clients the one with the highest rate is named.

    `usage`: of the newest window, and of the LOOKBACK_WINDOWS before at least that of its heavy clients.
    `latencies_ms`: by cluster, source and client, and by the begin of the window, the greatest one of these windows."""
    rows = list(usage)
    heavy, slow = heavy_clients(rows, newest_ms), []
    for (cluster, source, client), brokers in calm_clients(rows, newest_ms).items():
        own = latencies_ms.get((cluster, source, client), {})
        at_brokers = [(-heavy[broker].rate, broker) for broker in brokers if broker in heavy]
        for _, broker in sorted(at_brokers):
            culprit = heavy[broker]
            if culprit.client != client and (latency := slowed(own, culprit.busy_at, newest_ms)):
                slow.append(Victim(cluster, source, *client, *culprit.client, broker[2], *latency))
                break
    return slow
