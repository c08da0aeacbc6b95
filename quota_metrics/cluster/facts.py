"""The facts of a cluster that limits and rates depend on, as one immutable value. Sans-I/O.

A fact that could not be read is in `unread` with what that means; nothing assumes Kafka's default silently.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from exporters.model import CONTROLLER
from quota_metrics.cluster.replication import (
    DYNAMIC_BROKER,
    REPLICATION_RATES,
    ReplicationThrottle,
    SetRate,
    replication_throttles,
)
from quota_metrics.windows import QuotaWindow

Release: TypeAlias = tuple[int, int]

METADATA_VERSION: Final = "metadata.version"
PROTOCOL_VERSION: Final = "inter.broker.protocol.version"  # of brokers before 4.0

_SINCE_3_8: Final = (3, 8)
# The first level of each release (MetadataVersion). 3.3 is the first release with KRaft for production.
_FIRST_LEVELS: Final = (
    (1, (3, 0)), (2, (3, 1)), (3, (3, 2)), (4, (3, 3)), (8, (3, 4)), (9, (3, 5)), (12, (3, 6)), (15, (3, 7)),
    (20, (3, 8)), (21, (3, 9)), (22, (4, 0)), (26, (4, 1)), (28, (4, 2)), (30, (4, 3)), (31, (4, 4)),
)  # fmt: skip

QUOTA_WINDOW: Final = ("quota.window.num", "quota.window.size.seconds")
MUTATION_WINDOW: Final = ("controller.quota.window.num", "controller.quota.window.size.seconds")
THREADS: Final = ("num.io.threads", "num.network.threads")
CALLBACK: Final = "client.quota.callback.class"
TELEMETRY_MAX_BYTES: Final = "telemetry.max.bytes"
PRINCIPAL_BUILDER: Final = "principal.builder.class"
AUTHORIZER: Final = "authorizer.class.name"
CONNECTIONS: Final = (
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
)
BROKER_CONFIGS: Final = frozenset(
    (*QUOTA_WINDOW, *MUTATION_WINDOW, *THREADS, CALLBACK, TELEMETRY_MAX_BYTES, PRINCIPAL_BUILDER, AUTHORIZER,
     *CONNECTIONS, *REPLICATION_RATES)
)  # fmt: skip

_DEFAULT_PRINCIPAL_BUILDER: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
PARTITIONS_OF_TOPICS: Final = "partitions of topics"
THROTTLED_REPLICAS: Final = "throttled replicas of topics"
REASSIGNMENTS: Final = "reassignments of partitions"
_OF_BROKERS: Final = ("configuration of broker", "log directories of broker")
_OF_THROTTLES: Final = (PARTITIONS_OF_TOPICS, THROTTLED_REPLICAS, REASSIGNMENTS)

_NAMED_TOPICS: Final = 3
_MOST: Final = (2**31 - 1, 2**63 - 1)  # Kafka's "no limit"


class Unread(NamedTuple):
    """A fact that could not be read: the right that it needs, what that means for Headroom's figures, and why."""

    what: str
    needs: str
    means: str
    error: str = ""


class HostAcl(NamedTuple):
    """An ACL that names a client's address; behind a gateway, brokers compare it with the gateway's."""

    permission: str  # ALLOW | DENY
    principal: str
    host: str
    operation: str
    resource: str  # `TOPIC orders`, `GROUP app-*` for a prefix


class AddressQuota(NamedTuple):
    """connection_creation_rate of an address; `ip` is None for the default."""

    ip: str | None
    rate: float


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One broker. `configs`: the BROKER_CONFIGS that it has set, also for single listeners."""

    broker_id: int
    release: Release | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    client_metrics: bool | None = None  # whether it knows CLIENT_METRICS (KIP-714, 3.7); None: not known
    sources: Mapping[str, int] = field(default_factory=dict)  # ConfigSource of each of REPLICATION_RATES
    moves_log_dirs: bool | None = None  # asked of brokers that throttle it; None: not known
    lacks_window: bool = False  # it described itself without a quota window, as no broker of Kafka's does

    @property
    def is_described(self) -> bool:
        """Whether its configuration could be read."""
        return bool(self.configs)

    @property
    def quota_window(self) -> QuotaWindow | None:
        """quota.window.num x quota.window.size.seconds; None when they could not be read."""
        return self._window(QUOTA_WINDOW)

    @property
    def mutation_window(self) -> QuotaWindow | None:
        """The controller's window, as far as this node's configuration says."""
        return self._window(MUTATION_WINDOW)

    @property
    def callback_class(self) -> str:
        """client.quota.callback.class; empty: Kafka's own rules apply, or it could not be read."""
        return self.configs.get(CALLBACK, "")

    @property
    def telemetry_max_bytes(self) -> int | None:
        return self.number(TELEMETRY_MAX_BYTES)

    @property
    def principal_builder(self) -> str:
        """A class other than Kafka's own; empty: none."""
        name = self.configs.get(PRINCIPAL_BUILDER, "")
        return "" if name == _DEFAULT_PRINCIPAL_BUILDER else name

    def number(self, name: str) -> int | None:
        """A configuration as a number; None when it is not set, not a number or could not be read."""
        value = self.configs.get(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None

    def limits(self) -> dict[str, str]:
        """Limits of connections and replication that are set to something else than "none"."""
        limits = (*CONNECTIONS, *REPLICATION_RATES)
        return {
            name: value
            for name, value in self.configs.items()
            if name.endswith(limits) and value and self.number(name) not in _MOST
        }

    def _window(self, names: tuple[str, str]) -> QuotaWindow | None:
        samples, size_s = (self.number(name) for name in names)
        if not samples or not size_s or samples > _MOST[0] or size_s > _MOST[0] // 1000:
            return None
        return QuotaWindow(samples, size_s * 1000, before_3_8(self.release))


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster at one moment; equal values mean that nothing changed."""

    cluster_id: str = ""
    brokers: tuple[BrokerFacts, ...] = ()
    metadata_version: Release | None = None  # finalized; None with ZooKeeper
    address_quotas: tuple[AddressQuota, ...] = ()
    has_authorizer: bool | None = None
    host_acls: tuple[HostAcl, ...] = ()
    throttled_replicas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # topic -> configuration -> value
    unread: tuple[Unread, ...] = ()
    reassigning: int | None = None  # how many partitions; None: not known
    partitions: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)  # of topics

    def broker(self, broker_id: int) -> BrokerFacts:
        """A broker's facts, empty for an unknown one."""
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), BrokerFacts(broker_id))

    def completed_by(self, earlier: ClusterFacts) -> ClusterFacts:
        """A broker that could not be asked keeps the configuration and the release that it had before."""
        before = {broker.broker_id: broker for broker in earlier.brokers}
        return replace(
            self,
            brokers=tuple(
                replace(
                    broker,
                    configs=broker.configs or old.configs,
                    release=broker.release or old.release,
                    sources=broker.sources if broker.configs else old.sources,
                    client_metrics=old.client_metrics if broker.client_metrics is None else broker.client_metrics,
                    lacks_window=broker.lacks_window or (old.lacks_window and not broker.is_described),
                )
                for broker in self.brokers
                for old in [before.get(broker.broker_id, broker)]
            ),
            partitions=self.partitions or earlier.partitions,
        )

    def window_at(self, broker_id: int) -> QuotaWindow | None:
        """A broker's quota window. If it is not known, another broker's, because brokers of a cluster usually agree.

        The CONTROLLER has the window of mutations.
        """
        if broker_id == CONTROLLER:
            return next((window for broker in self.brokers if (window := broker.mutation_window)), None)
        own = self.broker(broker_id).quota_window
        return own or next((window for broker in self.brokers if (window := broker.quota_window)), None)

    @property
    def release(self) -> Release | None:
        """The oldest release of a broker, which decides what the cluster can do."""
        return min((broker.release for broker in self.brokers if broker.release is not None), default=None)

    @property
    def callback_classes(self) -> tuple[str, ...]:
        return tuple(sorted({broker.callback_class for broker in self.brokers} - {""}))

    @property
    def telemetry_max_bytes(self) -> int | None:
        """The smallest of the brokers' telemetry.max.bytes, which a client may meet at any of them."""
        sizes = (broker.telemetry_max_bytes for broker in self.brokers)
        return min((size for size in sizes if size is not None), default=None)

    @property
    def has_client_metrics(self) -> bool | None:
        """Whether subscriptions can be stored in the cluster; None while not known."""
        answers = {broker.client_metrics for broker in self.brokers} - {None}
        return all(answers) if answers else None

    def remarks(self) -> Iterator[str]:
        """What differs from a cluster with default settings, and what it means behind a gateway; one line each."""
        for name in self.callback_classes:
            yield (
                f"client.quota.callback.class is {name}: this class decides limits, and may ignore the configured"
                " quotas; a function that answers as it does can be named in quotas.callback"
            )
        if self.callback_classes and any(not broker.callback_class for broker in self.brokers):
            yield "only some brokers have a client.quota.callback.class"
        for broker in self.brokers:
            if (window := broker.quota_window) is not None and (window.samples, window.window_ms) != (11, 1000):
                yield (
                    f"broker {broker.broker_id} measures over quota.window.num={window.samples} x"
                    f" {window.window_ms // 1000} s: bursts of up to {window.full_s:g} s of the limit pass"
                )
        limits = {(name, value) for broker in self.brokers for name, value in broker.limits().items()}
        for name, value in sorted(limit for limit in limits if ".per.ip" in limit[0]):
            yield f"{name} is {value}: brokers count the gateway and all of its clients as one address"
        for quota in self.address_quotas:
            yield (
                f"connection_creation_rate of {quota.ip or 'the default address'} is {quota.rate:g} per second: brokers"
                " apply it to the gateway's address, not to those of clients"
            )
        if self.host_acls:
            yield (
                f"{len(self.host_acls)} ACLs name addresses of clients: brokers compare them with the gateway's,"
                " so that a denied client is allowed and an allowed one denied"
            )
        if builders := sorted({broker.principal_builder for broker in self.brokers} - {""}):
            yield (
                f"principal.builder.class is {', '.join(builders)}: the brokers may name users in another way than the"
                " gateway, and quotas of users then do not match"
            )
        if self.has_client_metrics is False:
            yield (
                f"brokers of release {release_text(self.release)} have no CLIENT_METRICS (Kafka 3.7): subscriptions are"
                " read from the file of the setting `subscriptions`, and `headroom subscriptions alter` writes it"
            )
        yield from self._remarks_on_replication()

    @property
    def replication_throttles(self) -> tuple[ReplicationThrottle, ...]:
        rates = [
            SetRate(broker.broker_id, name, value, broker.sources.get(name, DYNAMIC_BROKER), broker.moves_log_dirs)
            for broker in self.brokers
            for name, value in sorted(broker.limits().items())
            if name in REPLICATION_RATES
        ]
        are_unread = {unread.what for unread in self.unread} & {PARTITIONS_OF_TOPICS, THROTTLED_REPLICAS}
        return replication_throttles(rates, None if are_unread else self.throttled_replicas, self.reassigning)

    @property
    def unread_of_throttles(self) -> tuple[Unread, ...]:
        """What `replication_throttles` would need besides."""
        return tuple(fact for fact in self.unread if fact.what in _OF_THROTTLES or fact.what.startswith(_OF_BROKERS))

    def _remarks_on_replication(self) -> Iterator[str]:
        stale = [throttle for throttle in self.replication_throttles if throttle.stale]
        for throttle in self.replication_throttles:
            if throttle.resource == "brokers":
                yield f"{throttle.where} throttles replication: {throttle.config} is {throttle.value}"
        topics = sorted(self.throttled_replicas)
        if topics:
            names = ", ".join(topics[:_NAMED_TOPICS])
            more = f" and {len(topics) - _NAMED_TOPICS} more" if len(topics) > _NAMED_TOPICS else ""
            yield f"replicas of topics are throttled: {names}{more}"
        if stale:
            reasons = "; ".join(sorted({reason for throttle in stale for reason in throttle.stale}))
            yield (
                f"{len(stale)} replication throttles are of no use and slow down replicas that catch up ({reasons}):"
                " `headroom quotas stale` prints the commands that remove them"
            )


def release_of_level(level: int) -> Release | None:
    """The release that introduced the level; the newest known one for later levels, None below the first."""
    place = bisect_right(_FIRST_LEVELS, level, key=lambda first: first[0])
    return _FIRST_LEVELS[place - 1][1] if place else None


def release_of(supported: Mapping[str, int], configs: Mapping[str, str]) -> Release | None:
    """A broker's release: the highest metadata.version that it supports, or with ZooKeeper its
    inter.broker.protocol.version, whose default is its own release and which is lower during an upgrade."""
    if METADATA_VERSION in supported:
        return release_of_level(supported[METADATA_VERSION])
    return release_of_text(configs.get(PROTOCOL_VERSION, ""))


def release_of_text(text: str) -> Release | None:
    """Of `4.3` or `3.7-IV4`; None when it is neither."""
    parts = text.partition("-")[0].split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def before_3_8(release: Release | None) -> bool:
    """Whether rates follow the rule of `quota_metrics.windows.Rate` up to 3.7."""
    return release is not None and release < _SINCE_3_8


def release_text(release: Release | None) -> str:
    return "unknown" if release is None else f"{release[0]}.{release[1]}"
