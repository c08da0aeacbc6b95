"""Facts as JSON, which command, API and page show, and as rows of the store. Sans-I/O."""

from collections.abc import Iterable
from typing import Any, Final

from exporters.model import StoredFacts
from quota_metrics.cluster.facts import CONNECTIONS, THREADS, BrokerFacts, ClusterFacts, release_text
from quota_metrics.cluster.replication import removal_commands
from quota_metrics.windows import QuotaWindow

_MOST_THREADS: Final = 2**31 - 1
_MOST_BYTES: Final = 2**63 - 1


def document(facts: ClusterFacts, warnings: Iterable[str] = ()) -> dict[str, Any]:
    """None stands for what could not be read. `warnings`: further lines for `remarks`."""
    return {
        "cluster_id": facts.cluster_id,
        "release": release_text(facts.release),
        "metadata_version": release_text(facts.metadata_version) if facts.metadata_version else None,
        "client_metrics": facts.has_client_metrics,
        "telemetry_max_bytes": facts.telemetry_max_bytes,
        "authorizer": facts.has_authorizer,
        "brokers": [_broker(broker) for broker in facts.brokers],
        "address_quotas": [{"ip": quota.ip, "connection_creation_rate": quota.rate} for quota in facts.address_quotas],
        "host_acls": [acl._asdict() for acl in facts.host_acls],
        "throttled_replicas": {topic: dict(values) for topic, values in facts.throttled_replicas.items()},
        "reassigning": facts.reassigning,
        "replication_throttles": _throttles(facts),
        "unread": [unread._asdict() for unread in facts.unread],
        "remarks": [*facts.remarks(), *warnings],
    }


def throttles_document(facts: ClusterFacts, *connection: str) -> dict[str, Any]:
    """What throttles replication, and the commands that remove what is of no use any more. `connection`: the arguments
    that say how to reach the cluster."""
    return {
        "reassigning": facts.reassigning,
        "throttles": _throttles(facts),
        "commands": removal_commands(facts.replication_throttles, *connection),
        "unread": [unread._asdict() for unread in facts.unread_of_throttles],
    }


def _throttles(facts: ClusterFacts) -> list[dict[str, Any]]:
    return [{**throttle._asdict(), "stale": list(throttle.stale)} for throttle in facts.replication_throttles]


def stored_facts(facts: ClusterFacts, earlier: ClusterFacts, cluster: str, now_ms: int) -> list[StoredFacts]:
    """Rows of cluster_facts: of the brokers that are described and differ from `earlier`. `cluster`: its name."""
    before = {broker.broker_id: broker for broker in earlier.brokers}
    rows = []
    for broker in facts.brokers:
        if not broker.is_described or broker == before.get(broker.broker_id):
            continue
        window, controller = broker.quota_window, broker.mutation_window
        io_threads, network_threads = (min(broker.number(name) or 0, _MOST_THREADS) for name in THREADS)
        rows.append(
            StoredFacts(
                cluster=cluster,
                broker_id=broker.broker_id,
                valid_from_ms=now_ms,
                release="" if broker.release is None else release_text(broker.release),
                quota_window_num=window.samples if window else 0,
                quota_window_size_ms=window.window_ms if window else 0,
                controller_quota_window_num=controller.samples if controller else 0,
                controller_quota_window_size_ms=controller.window_ms if controller else 0,
                callback_class=broker.callback_class,
                telemetry_max_bytes=min(broker.telemetry_max_bytes or 0, _MOST_BYTES),
                io_threads=io_threads,
                network_threads=network_threads,
                configs=dict(sorted(broker.configs.items())),
            )
        )
    return rows


def _broker(broker: BrokerFacts) -> dict[str, Any]:
    limits = broker.limits()
    return {
        "broker_id": broker.broker_id,
        "release": release_text(broker.release),
        **_window("quota_window", broker.quota_window),
        **_window("controller_quota_window", broker.mutation_window),
        "callback_class": broker.callback_class if broker.is_described else None,
        "telemetry_max_bytes": broker.telemetry_max_bytes,
        "io_threads": broker.number("num.io.threads"),
        "network_threads": broker.number("num.network.threads"),
        "principal_builder": broker.principal_builder if broker.is_described else None,
        "connection_limits": {name: value for name, value in limits.items() if name.endswith(CONNECTIONS)},
        "replication_throttles": {name: value for name, value in limits.items() if not name.endswith(CONNECTIONS)},
    }


def _window(name: str, window: QuotaWindow | None) -> dict[str, int | None]:
    return {
        f"{name}_num": None if window is None else window.samples,
        f"{name}_size_ms": None if window is None else window.window_ms,
    }
