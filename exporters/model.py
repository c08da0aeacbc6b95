"""The data model that telemetry, quota_metrics and spark_jobs share. No I/O, no clock.

Names are Kafka's where Kafka has one, and contain the unit. Identity comes from the connection, never from a payload.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, TypeAlias

ANONYMOUS = "ANONYMOUS"  # KafkaPrincipal.ANONYMOUS.getName(): the user of an unauthenticated connection
UNKNOWN = "unknown"  # ClientInformation.UNKNOWN_NAME_OR_VERSION
UNOWNED = "unowned"  # the team of clients that no team owns
DEFAULT_ENTITY = "<default>"  # a default entity in quota_limits (the spelling of Kafka with ZooKeeper)


# Values of `pushes.transport` -> the listener name of the connection. Other telemetry arrived by the Kafka protocol, or
# by gRPC with the same rules.
OTLP_LISTENERS = {"otlp_http": "OTLP_HTTP", "otlp_grpc": "OTLP_GRPC"}


class QuotaKey(StrEnum):
    """Client quota configuration keys (org.apache.kafka.server.config.QuotaConfig)."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


BYTE_KEYS: Final = (QuotaKey.PRODUCER_BYTE_RATE.value, QuotaKey.CONSUMER_BYTE_RATE.value)


@dataclass(frozen=True, slots=True)
class Connection:
    """The client of a connection, by facts of the connection itself."""

    cluster: str
    listener: str
    principal: str  # the principal's name without its type, as `user` in a quota entity
    source_address: str
    source_port: int
    software_name: str
    software_version: str
    broker_id: int  # the connection's broker, or NO_BROKER


@dataclass(frozen=True, slots=True)
class ClientInstance:
    """A client instance that received an id or pushed."""

    connection: Connection
    client_id: str
    client_instance_id: bytes  # 16 bytes, big endian
    seen_at_ms: int


@dataclass(frozen=True, slots=True)
class Push:
    """One PushTelemetry request that passed the rules. `payload`: compressed OTLP MetricsData, as received."""

    connection: Connection
    client_id: str
    client_instance_id: bytes
    received_at_ms: int
    subscription_id: int
    terminating: bool
    compression_type: int
    payload: bytes


CONTROLLER = -1  # the broker of what the active controller meters, whichever broker a request came through
NO_BROKER = -1  # broker_id of a connection that leads to none
MAX_SOFTWARE_CHARS = 255  # longer names and versions of a client's software are cut

# A topic (its name, or another text when only its id is known), its number of partitions after the change, and how many
# are added; -1: not known. And whether the change was only validated: it costs as much, and is not made.
PartitionChange: TypeAlias = tuple[str, int, int, bool]
Changes: TypeAlias = tuple[PartitionChange, ...]


class Exchange(NamedTuple):
    """One request with the broker's response, or an acks=0 Produce, which has none (response_bytes 0).

    Sizes exclude the frame's 4-byte length. `address`: the client's.
    """

    principal: str
    client_id: str
    address: str
    broker_id: int
    api_key: int
    request_bytes: int
    response_bytes: int
    throttle_ms: int
    now_ms: int
    changes: Changes = ()  # what the controller accepted
    muted_from_ms: int = 0  # when the throttle time begins; 0: at now_ms


# A plain tuple of these values, which compiled code makes faster than an Exchange.
ExchangeValues: TypeAlias = tuple[str, str, str, int, int, int, int, int, int, Changes, int]


class UsageSample(NamedTuple):
    """One interval of one (user, client-id) at one broker: a row of quota_usage."""

    cluster: str
    quota_key: str
    ts_ms: int  # end of the interval
    user: str
    client_id: str
    ip: str
    broker_id: int
    bytes: int  # in the interval
    rate: float  # Kafka's windowed rate at ts_ms (bytes/s, or percent for request_percentage)
    throttle_ms: float  # the longest throttle time that the broker announced in the interval
    throttled_requests: int
    source: str  # 'gateway' | 'jmx'
    # Added later: each has a default, because records in the spool may be older.
    gateway_id: str = ""  # the gateway that measured it; "" for other sources
    interval_ms: int = 0  # length of the interval; 0: a bare sample, its interval is unknown
    limit: float | None = None  # quota in force at ts_ms; None: no quota applies, or it is not known
    limit_known: bool = False  # whether `limit` is what the cluster has configured
    matched_entity: str = ""  # `user=alice, client-id=<default>`; "" when no quota applies
    # The broker's metric tags, user not percent-encoded: samples equal in both share one quota at a broker.
    # None: the same as `user` and `client_id`.
    bucket_user: str | None = None
    bucket_client_id: str | None = None
    # Time in [ts_ms - interval_ms, ts_ms) in which the broker muted the client: a union, never a sum; with what became
    # known too late for the row before.
    muted_ms: int = 0
    decided_by: str = ""  # the brokers' client.quota.callback.class, which decides instead of `limit`; "": none
    implied_limit: float = 0.0  # the limit that the longest throttle time of the interval implies; 0.0: no estimate
    requests: int = 0  # Produce or Fetch requests in the interval; 0 where they are not counted


class SampledTopics(NamedTuple):
    """What was read off one frame of a client. `payer`: exporters.identity.payer_of. `direction`: 'in' for records that
    go to the cluster, 'out' for those that come from it. `topics`: record bytes by topic."""

    user: str
    client_id: str
    payer: str
    direction: str
    topics: Mapping[str, int]


class TopicSample(NamedTuple):
    """What was read of one client's traffic with one topic in an interval: a row of topic_samples."""

    cluster: str
    ts_ms: int  # end of the interval
    interval_ms: int
    user: str
    client_id: str
    topic: str
    direction: str
    sampled_bytes: int  # of records, as on the wire
    sampled_frames: int  # in which the topic had records
    sample: float  # share of the frames that were read
    gateway_id: str


class QuotaLimit(NamedTuple):
    """One configured quota from `valid_from_ms` on: a row of quota_limits.

    A dimension is '' when it is not part of the entity, and DEFAULT_ENTITY for the default entity.
    `value` is None when the quota was removed.
    """

    cluster: str
    user: str
    client_id: str
    ip: str
    quota_key: str
    valid_from_ms: int
    value: float | None


class StoredFacts(NamedTuple):
    """What a broker's configuration says from `valid_from_ms` on: a row of cluster_facts. 0 and '': not set or not
    read."""

    cluster: str
    broker_id: int
    valid_from_ms: int
    release: str
    quota_window_num: int
    quota_window_size_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_ms: int
    callback_class: str
    telemetry_max_bytes: int
    io_threads: int
    network_threads: int
    configs: Mapping[str, str]


class DropReason(StrEnum):
    """Why a received record was not written. Closed set: values are metric labels."""

    DECOMPRESS = "decompress"
    TOO_LARGE = "too_large"
    DECODE = "decode"
    OVER_BUDGET = "over_budget"  # over the budget of points, attributes, buckets or new series of a push or client
    UNSUPPORTED_KIND = "unsupported_kind"
    CORRUPT_RECORD = "corrupt_record"
    SKIPPED = "skipped"  # by an operator: headroom spool skip
    REFUSED = "refused"  # refused by the store, or an internal error with this record


class RecordKind(IntEnum):
    """First byte of a spool record."""

    PUSH = 1
    INSTANCE = 2
    USAGE = 3
    LIMITS = 4
    FACTS = 5
    TOPICS = 6
