"""Which clients in the store a subscription would match, and the points per second they would send.

For `headroom subscriptions preview` and the page of subscriptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from exporters.clickhouse.reader import Nodes, Row, read_rows
from telemetry.rules.java.hash import uuid_text
from telemetry.rules.subscription_config import ALL_METRICS, DEFAULT_INTERVAL_MS, Subscription
from telemetry.rules.subscriptions import is_match

# Points per push with all metrics, for clients that sent none; observed with Java 4.3 and librdkafka 2.16.
JAVA_POINTS: Final = 110
LIBRDKAFKA_POINTS: Final = 15
OTHER_POINTS: Final = 10

_ALL_INSTANCES: Final = 2**32 - 1
_TIMEOUT_S: Final = 30.0
_MAX_BYTES: Final = 1 << 30
_NOT_STORED = frozenset({"client_source_port", "listener"})

# A rewritten series counts once, as does an instance without series. In the order of the table's key, so that no more
# than `most` instances are read; of the series those of these instances.
_QUERY = """
WITH known AS
(
    SELECT cluster, client_instance_id, client_id, principal, software_name, software_version, source_address
    FROM headroom.client_instances FINAL
    WHERE last_seen >= fromUnixTimestamp64Milli({since_ms:Int64}) AND terminated = 0
    ORDER BY cluster, principal, client_id, client_instance_id
    LIMIT {most:UInt32}
)
SELECT i.cluster, i.client_instance_id, i.client_id, i.principal, i.software_name, i.software_version,
       i.source_address, s.series, s.wanted
FROM known AS i
LEFT JOIN (
    SELECT cluster, client_instance_id, uniqExact(series_id) AS series,
           uniqExactIf(series_id, {all:Bool} OR arrayExists(p -> startsWith(metric, p), {prefixes:Array(String)}))
               AS wanted
    FROM headroom.series
    WHERE last_seen >= fromUnixTimestamp64Milli({since_ms:Int64})
      AND client_instance_id GLOBAL IN (SELECT client_instance_id FROM known)
    GROUP BY cluster, client_instance_id
) AS s ON s.cluster = i.cluster AND s.client_instance_id = i.client_instance_id
"""


@dataclass(frozen=True, slots=True)
class KnownClient:
    """A client instance of the store; `points`: per push, of the requested metrics."""

    cluster: str
    client_instance_id: str
    client_id: str
    principal: str
    software_name: str
    software_version: str
    source_address: str
    points: int
    sent_before: bool  # otherwise `points` is an estimate by its software


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of a subscription. `known`: number of client instances examined."""

    interval_ms: int
    known: int
    clients: Sequence[KnownClient]

    @property
    def points_per_second(self) -> float:
        return sum(client.points for client in self.clients) * 1000 / self.interval_ms

    def document(self, most: int | None = None) -> dict[str, Any]:
        """As JSON, with the first `most` clients."""
        return {
            "known": self.known,
            "matching": len(self.clients),
            "interval_ms": self.interval_ms,
            "points_per_second": self.points_per_second,
            "clients": [asdict(client) for client in self.clients[:most]],
        }


def preview_of(subscription: Subscription, store: Nodes, since_ms: int, *, most: int = _ALL_INSTANCES) -> Preview:
    """Examines the client instances seen in the given time, at most `most`. Raises ConnectionError."""
    matching = replace(subscription, match={k: v for k, v in subscription.match.items() if k not in _NOT_STORED})
    rows = _rows(subscription, store, since_ms, most)
    clients = [_client(row, subscription) for row in rows if is_match(matching, _attributes(row))]
    clients.sort(key=lambda client: (client.cluster, client.client_id, client.principal, client.client_instance_id))
    return Preview(min(subscription.interval_ms, DEFAULT_INTERVAL_MS), len(rows), clients)


def _rows(subscription: Subscription, store: Nodes, since_ms: int, most: int) -> Sequence[Row]:
    parameters = {
        "since_ms": since_ms,
        "most": most,
        "all": int(ALL_METRICS in subscription.metrics),
        "prefixes": subscription.metrics,
    }
    return store.ask(partial(read_rows, sql=_QUERY, parameters=parameters, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES))


def _attributes(row: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        "client_instance_id": uuid_text(UUID(row["client_instance_id"]).bytes),
        "client_id": row["client_id"],
        "client_software_name": row["software_name"],
        "client_software_version": row["software_version"],
        "client_source_address": row["source_address"],
        "principal": row["principal"],
        "cluster": row["cluster"],
    }


def _client(row: Mapping[str, Any], subscription: Subscription) -> KnownClient:
    sent = row["series"] > 0
    usual = usual_points(row["software_name"], row["software_version"]) if subscription.metrics else 0
    return KnownClient(
        cluster=row["cluster"],
        client_instance_id=uuid_text(UUID(row["client_instance_id"]).bytes),
        client_id=row["client_id"],
        principal=row["principal"],
        software_name=row["software_name"],
        software_version=row["software_version"],
        source_address=row["source_address"],
        points=row["wanted"] if sent else usual,
        sent_before=sent,
    )


def usual_points(software_name: str, software_version: str) -> int:
    """Points per push of a client of this software, with all metrics."""
    if "java" in software_name:
        return JAVA_POINTS
    return LIBRDKAFKA_POINTS if "rdkafka" in f"{software_name} {software_version}" else OTHER_POINTS
