"""Which clients in the store a subscription would match, and the points per second they would send.

For `headroom subscriptions preview` and the page of subscriptions.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from exporters.clickhouse.client import ClickHouse
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.java.regex import MAX_SUBJECT_CHARS
from telemetry.subscriptions.subscription import ALL_METRICS, DEFAULT_INTERVAL_MS, Subscription

# Points per push with all metrics, for clients that sent none; observed with Java 4.3 and librdkafka 2.16.
JAVA_POINTS: Final = 110
LIBRDKAFKA_POINTS: Final = 15
OTHER_POINTS: Final = 10

_ALL: Final = 2**32 - 1
_MAX_BYTES: Final = 1 << 30
_NOT_STORED = frozenset({"client_source_port", "listener"})

# org.apache.kafka.common.Uuid.toString: 22 characters of base64url. ClickHouse 25.8 may be built without base64.
_INSTANCE_TEXT: Final = (
    "arrayStringConcat(arrayMap(place -> substring('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_',"
    " 1 + toUInt8(bitAnd(bitShiftRight(16 * toUInt256(reinterpretAsUInt128(reverse(UUIDStringToNum("
    "toString(client_instance_id))))), 126 - 6 * place), 63)), 1), range(22)))"
)
# The column behind each match key, as clients are matched by it (ClientMetricsInstanceMetadata).
_SUBJECTS: Final = {
    "client_instance_id": _INSTANCE_TEXT,
    "client_id": "client_id",
    "client_software_name": "software_name",
    "client_software_version": "software_version",
    "client_source_address": "source_address",
    "principal": "principal",
    "cluster": "cluster",
}

# A group for each software, of clients that match or not, that sent metrics or not. Instances are read in the order of
# the table's key, by one thread in small blocks, so that the query ends soon after `most` of them. A rewritten series
# counts once. ClickHouse matches with RE2, as JavaPattern does.
_QUERY = """
WITH known AS
(
    SELECT cluster, client_instance_id, client_id, principal, software_name, software_version, source_address,
           points > 0 AS sent
    FROM client_instances FINAL
    WHERE last_seen >= fromUnixTimestamp64Milli({{since_ms:Int64}}) AND terminated = 0
    ORDER BY cluster, principal, client_id, client_instance_id
    LIMIT {{most:UInt32}}
    SETTINGS max_threads = 1, read_in_order_use_buffering = 0, max_block_size = 8192
)
SELECT is_match, software_name, software_version, is_sender, count() AS instances, sum(wanted) AS points,
       arraySlice(arraySort(groupArrayIf(
           (cluster, client_id, principal, toString(client_instance_id), source_address, wanted), is_match)),
           1, {{shown:UInt32}}) AS clients
FROM
(
    SELECT i.cluster AS cluster, i.client_instance_id AS client_instance_id, i.client_id AS client_id,
           i.principal AS principal, i.software_name AS software_name, i.software_version AS software_version,
           i.source_address AS source_address, s.wanted AS wanted, i.sent OR s.wanted > 0 AS is_sender,
           {condition} AS is_match
    FROM known AS i
    LEFT JOIN (
        SELECT cluster, client_instance_id, uniqExact(series_id) AS wanted
        FROM series
        WHERE last_seen >= fromUnixTimestamp64Milli({{since_ms:Int64}})
          AND ({{all:Bool}} OR arrayExists(p -> startsWith(metric, p), {{prefixes:Array(String)}}))
        GROUP BY cluster, client_instance_id
    ) AS s ON s.cluster = i.cluster AND s.client_instance_id = i.client_instance_id
)
GROUP BY is_match, software_name, software_version, is_sender
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
    """The effect of a subscription. `known`: number of client instances examined, `clients`: the first that match."""

    interval_ms: int
    known: int
    matching: int
    points_per_push: int
    clients: Sequence[KnownClient]

    @property
    def points_per_second(self) -> float:
        return self.points_per_push * 1000 / self.interval_ms

    def document(self) -> dict[str, Any]:
        return {
            "known": self.known,
            "matching": self.matching,
            "interval_ms": self.interval_ms,
            "points_per_second": self.points_per_second,
            "clients": [asdict(client) for client in self.clients],
        }


def preview_of(
    subscription: Subscription, clickhouse: ClickHouse, since_ms: int, *, most: int = _ALL, shown: int = _ALL
) -> Preview:
    """Examines the client instances seen in the given time, at most `most`. Raises ConnectionError."""
    patterns = [(key, pattern) for key, pattern in subscription.match.items() if key not in _NOT_STORED]
    conditions = [
        f"match(substringUTF8({_SUBJECTS[key]}, 1, {MAX_SUBJECT_CHARS}), {{pattern{number}:String}})"
        for number, (key, _) in enumerate(patterns)
    ]
    parameters = {
        "since_ms": since_ms,
        "most": most,
        "shown": shown,
        "all": int(ALL_METRICS in subscription.metrics),
        "prefixes": subscription.metrics,
        **{f"pattern{number}": pattern.re2 for number, (_, pattern) in enumerate(patterns)},
    }
    sql = _QUERY.format(condition=" AND ".join(conditions) or "true")
    groups = clickhouse.rows(sql, parameters, max_bytes=_MAX_BYTES)
    matching = [group for group in groups if group["is_match"]]
    points_per_push, clients = 0, list[KnownClient]()
    for group in matching:
        name, version, is_sender = group["software_name"], group["software_version"], bool(group["is_sender"])
        usual = usual_points(name, version) if subscription.metrics else 0
        points_per_push += int(group["points"]) if is_sender else usual * int(group["instances"])
        for cluster, client_id, principal, instance, address, stored_points in group["clients"]:
            instance_id, points = uuid_text(UUID(instance).bytes), int(stored_points) if is_sender else usual
            client = KnownClient(cluster, instance_id, client_id, principal, name, version, address, points, is_sender)
            clients.append(client)
    clients.sort(key=lambda client: (client.cluster, client.client_id, client.principal, client.client_instance_id))
    return Preview(
        interval_ms=min(subscription.interval_ms, DEFAULT_INTERVAL_MS),
        known=sum(int(group["instances"]) for group in groups),
        matching=sum(int(group["instances"]) for group in matching),
        points_per_push=points_per_push,
        clients=clients[:shown],
    )


def usual_points(software_name: str, software_version: str) -> int:
    """Points per push of a client of this software, with all metrics."""
    if "rdkafka" in f"{software_name} {software_version}" or software_name.startswith("confluent-kafka-"):
        return LIBRDKAFKA_POINTS
    return JAVA_POINTS if "java" in software_name else OTHER_POINTS
