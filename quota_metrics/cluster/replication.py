"""Replication throttles: which of them limit nothing any more, and the commands that remove them. Sans-I/O.

kafka-reassign-partitions.sh --throttle sets a rate at each broker and the throttled replicas at each topic, for leaders
and for followers; only --verify, after the end, removes them. Until then they slow down every replica that catches up,
as after a restart (KIP-73). --replica-alter-log-dirs-throttle limits moves between directories of a broker (KIP-113).
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
REPLICATION_RATES: Final = (LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE)
REPLICATION_REPLICAS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

# org.apache.kafka.clients.admin.ConfigEntry.ConfigSource, by code of DescribeConfigs
DYNAMIC_BROKER: Final = 2
DYNAMIC_DEFAULT: Final = 3

_OTHER_SIDE: Final = {
    LEADER_RATE: FOLLOWER_RATE,
    FOLLOWER_RATE: LEADER_RATE,
    LEADER_REPLICAS: FOLLOWER_REPLICAS,
    FOLLOWER_REPLICAS: LEADER_REPLICAS,
}
_REPLICAS_OF: Final = {LEADER_RATE: LEADER_REPLICAS, FOLLOWER_RATE: FOLLOWER_REPLICAS}
_RATE_OF: Final = {replicas: rate for rate, replicas in _REPLICAS_OF.items()}


class SetRate(NamedTuple):
    """A rate of REPLICATION_RATES at a broker. `source`: code of its ConfigSource. `moves_log_dirs`: whether replicas
    move between its directories; None: not known."""

    broker_id: int
    config: str
    value: str
    source: int
    moves_log_dirs: bool | None = None


class ReplicationThrottle(NamedTuple):
    """A configuration that throttles replication. `stale`: why it is of no use, one reason each; empty: in use."""

    resource: str  # brokers | topics
    name: str  # the broker's id, empty for the default of all brokers; the topic
    config: str
    value: str
    stale: tuple[str, ...]

    @property
    def where(self) -> str:
        """`broker 1`, `all brokers`, `topic orders`."""
        return f"{self.resource.removesuffix('s')} {self.name}" if self.name else f"all {self.resource}"


def replication_throttles(
    rates: Sequence[SetRate], replicas: Mapping[str, Mapping[str, str]] | None, reassigning: int | None
) -> tuple[ReplicationThrottle, ...]:
    """All throttles, brokers first. `replicas`: topic -> configurations of REPLICATION_REPLICAS, None when they are not
    known; `reassigning`: how many partitions are reassigned now, None likewise.

    A rate of a broker's own file was meant to stay, and is never stale.
    """
    set_rates = {rate.config for rate in rates}
    set_replicas = None if replicas is None else {config for configs in replicas.values() for config in configs}
    throttles: dict[tuple[str, str, str], ReplicationThrottle] = {}
    for rate in rates:
        name = "" if rate.source == DYNAMIC_DEFAULT else str(rate.broker_id)
        is_dynamic = rate.source in (DYNAMIC_BROKER, DYNAMIC_DEFAULT)
        why = tuple(_reasons_against_rate(rate, set_rates, set_replicas, reassigning)) if is_dynamic else ()
        key = ("brokers", name, rate.config)
        if key not in throttles or throttles[key].stale:  # the default of all brokers is of use when it is at one
            throttles[key] = ReplicationThrottle("brokers", name, rate.config, rate.value, why)
    for topic, configs in sorted((replicas or {}).items()):
        for config, value in sorted(configs.items()):
            why = tuple(_reasons_against_replicas(config, configs, set_rates, reassigning))
            throttles["topics", topic, config] = ReplicationThrottle("topics", topic, config, value, why)
    return tuple(throttles.values())


def removal_commands(throttles: Iterable[ReplicationThrottle], *connection: str) -> list[str]:
    """One kafka-configs.sh line for each resource with stale throttles, quoted for a POSIX shell. `connection`: the
    arguments that say how to reach the cluster."""
    stale: dict[tuple[str, str], list[str]] = {}
    for throttle in throttles:
        if throttle.stale:
            stale.setdefault((throttle.resource, throttle.name), []).append(throttle.config)
    return [
        shlex.join(
            ["kafka-configs.sh", *connection, "--alter", "--entity-type", resource]
            + (["--entity-name", name] if name else ["--entity-default"])
            + ["--delete-config", ",".join(configs)]
        )
        for (resource, name), configs in stale.items()
    ]


def _reasons_against_rate(
    rate: SetRate, set_rates: set[str], set_replicas: set[str] | None, reassigning: int | None
) -> Iterator[str]:
    if rate.config == LOG_DIRS_RATE:
        if rate.moves_log_dirs is False:
            yield "no replica moves between log directories"
        return
    if reassigning == 0:
        yield "no reassignment is running"
    if _OTHER_SIDE[rate.config] not in set_rates:
        yield f"no broker has {_OTHER_SIDE[rate.config]}"
    if set_replicas is not None and _REPLICAS_OF[rate.config] not in set_replicas:
        yield f"no topic has {_REPLICAS_OF[rate.config]}"


def _reasons_against_replicas(
    config: str, of_topic: Mapping[str, str], set_rates: set[str], reassigning: int | None
) -> Iterator[str]:
    if reassigning == 0:
        yield "no reassignment is running"
    if _OTHER_SIDE[config] not in of_topic:
        yield f"the topic has no {_OTHER_SIDE[config]}"
    if _RATE_OF[config] not in set_rates:
        yield f"no broker has {_RATE_OF[config]}"
