"""Builds the parts that every network process has: spool writer, telemetry receiver, gateway, periodic tasks."""

import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from math import ceil
from pathlib import Path
from typing import NamedTuple, TypeVar

from exporters import self_metrics as catalogue
from exporters.model import NO_BROKER, Connection, SampledTopics
from exporters.self_metrics import SelfMetric, Values
from exporters.spool.records import USAGE_WRITER
from exporters.spool.writer import PushSpool, SpoolWriter
from headroom.clock import monotonic_ms, now_ms
from headroom.config.listener import FurtherListenerConfig
from headroom.config.settings import ServeConfig, TelemetryConfig
from headroom.daemon_thread import in_daemon_thread
from headroom.errors import ServeError
from headroom.server.metrics import receiver_readings
from headroom.server.periodic import PeriodicTask
from headroom.server.process_limits import HTTP_CONNECTIONS, open_files
from headroom.server.processes.security import listener_security
from quota_metrics.kafka.cluster import Node
from telemetry.gateway.broker_ports import BrokerNames, PortOptions
from telemetry.gateway.client_connection import GatewayOptions
from telemetry.gateway.connection import ConnectionLimits
from telemetry.gateway.connection_limits import AddressGate, AdmissionLimits
from telemetry.gateway.listener import ListenerOptions
from telemetry.gateway.networks import Administrators, networks_of
from telemetry.gateway.responses import LocalAnswer, Observe
from telemetry.gateway.security.sasl_tokens import TokenOwners
from telemetry.gateway.server import Gateway
from telemetry.gateway.topic_sampling import TopicSampler
from telemetry.receiver.group_commit import MOST_WAITING
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.payer_budgets import PayerLimits, Payers
from telemetry.subscriptions.subscription import EXTRA_MATCH_KEYS, MATCH_KEYS
from telemetry.subscriptions.subscription_file import SubscriptionFile, SubscriptionFileError

Spool = TypeVar("Spool", SpoolWriter, PushSpool)
_OTHER_OPEN_FILES = 128  # listeners, spool, pipes


def open_spool(config: ServeConfig, name: str, stack: AsyncExitStack) -> SpoolWriter:
    """Raises ServeError."""
    return _opened(partial(_writer, config, name), config, stack)


def open_push_spool(config: ServeConfig, name: str, stack: AsyncExitStack) -> PushSpool:
    """Raises ServeError."""
    return _opened(partial(PushSpool, partial(_writer, config), name), config, stack)


def _opened(opening: Callable[[], Spool], config: ServeConfig, stack: AsyncExitStack) -> Spool:
    try:
        spool = opening()
    except OSError as exc:
        raise ServeError(f"cannot open the spool in {config.data}: {exc.strerror}") from exc
    stack.callback(spool.close)
    return spool


def _writer(config: ServeConfig, name: str) -> SpoolWriter:
    limits = config.spool
    return SpoolWriter(
        config.data / "spool",
        name,
        segment_bytes=limits.segment_bytes,
        max_bytes=limits.usage_share if name == USAGE_WRITER else limits.push_share,
    )


def sync_task(spool: SpoolWriter | PushSpool, config: ServeConfig) -> PeriodicTask:
    """In a thread of its own: what waits for the loop's common threads must not delay what a power loss would lose."""
    return PeriodicTask("sync", config.spool.sync_ms, lambda: in_daemon_thread(spool.sync))


def push_sync_tasks(pushes: PushSpool, config: ServeConfig) -> list[PeriodicTask]:
    """None when each flush syncs."""
    return [] if config.spool.fsync == "each" else [sync_task(pushes, config)]


def push_flush(pushes: PushSpool, config: ServeConfig) -> Callable[[], None]:
    """Flushes pushes before they are acknowledged. The callable raises OSError."""
    if config.spool.fsync == "interval":
        return pushes.flush

    def flush_and_sync() -> None:
        pushes.flush()
        pushes.sync()

    return flush_and_sync


def telemetry_receiver(config: ServeConfig, pushes: PushSpool) -> TelemetryReceiver:
    """Its rules have no subscriptions yet."""
    limits = config.telemetry
    validate_payload = None
    if limits.validate == "receive":  # before pushes are acknowledged
        # The decoder takes 40 MB per process, so it is imported only if configured.
        from telemetry.decode import decoder
        from telemetry.decode.bounds import PayloadLimits

        most = limits.max_decompressed_bytes
        validate_payload = partial(decoder.validate_payload, max_decompressed_bytes=most, limits=PayloadLimits())
    payers = PayerLimits(
        requests=limits.payer_requests, instances=limits.payer_instances, nbytes=float(limits.payer_bytes)
    )
    return TelemetryReceiver(
        new_rules(limits),
        append=pushes.append,
        telemetry_max_bytes=limits.max_bytes,
        validate_payload=validate_payload,
        rules_ms=monotonic_ms,
        payers=Payers(payers),
    )


def new_rules(config: TelemetryConfig) -> ClientMetrics:
    return ClientMetrics(
        new_id=lambda: uuid.uuid4().bytes,
        max_instances=config.max_instances,
        match_keys=EXTRA_MATCH_KEYS if config.extra_selectors else MATCH_KEYS,
    )


class ClusterView(NamedTuple):
    """Whom a gateway asks about its cluster: may an address connect, who owns a token, what is an unknown broker.
    `follows`: another process opens the listeners first."""

    addresses: AddressGate
    token_owners: TokenOwners
    unknown_broker: Callable[[], None]
    follows: bool = False


def new_gateway(
    config: ServeConfig,
    cluster: str,
    receiver: TelemetryReceiver,
    pushes: PushSpool,
    *,
    observe: Observe = lambda _: None,
    local: Callable[[str, int, Connection], Mapping[int, LocalAnswer]] | None = None,
    view: ClusterView | None = None,
    topics: Callable[[SampledTopics], None] | None = None,
) -> Gateway:
    """`observe` gets exchanges, of which a sink has none; `topics` what is read of sampled frames. `local`: the
    handlers without a cluster."""
    view = view or ClusterView(AddressGate(), TokenOwners(), lambda: None)
    sampler, sample = None, config.quotas.topics.sample
    if topics is not None and sample:
        sampler = TopicSampler(sample, random.Random().random, topics)  # noqa: S311 no secret
    return Gateway(
        cluster,
        receiver,
        listeners_of(config, view),
        flush=push_flush(pushes, config),
        observe=observe,
        now_ms=now_ms,
        local=local,
        options=GatewayOptions(
            limits=ConnectionLimits(
                max_request_bytes=config.gateway.max_request_bytes,
                max_held_request_bytes=2 * config.telemetry.max_bytes + 65_536,
                topics=sampler,
            ),
            admission=admission_limits(config),
            connect_timeout_s=config.gateway.connect_timeout_ms / 1000,
            upstream_networks=networks_of(config.gateway.upstream_networks),
            # A sync waits for the disk: once per turn.
            most_waiting=None if config.spool.fsync == "each" else MOST_WAITING,
            addresses=view.addresses,
            token_owners=view.token_owners,
        ),
    )


def listeners_of(config: ServeConfig, view: ClusterView) -> list[ListenerOptions]:
    """The main listener and the further ones. Their brokers take no port of an endpoint that is opened later."""
    receivers = (config.grpc.listen, config.otlp.grpc, config.otlp.http)
    later = (config.http, config.sql, *receivers, *(further.listen for further in config.listeners))
    main = FurtherListenerConfig.model_construct(
        **dict(config.listener),
        listen=config.listen,
        name="",
        advertised_host=config.gateway.advertised_host,
    )
    return [
        ListenerOptions(
            listener.listen.host,
            listener.listen.port,
            listener.advertised_host,
            listener_security(config, listener, listener.name),
            PortOptions(
                shared=config.processes > 1 and not view.follows,
                follows=view.follows,
                reserved={address.port for address in later if address is not None and address.port},
                names=BrokerNames(listener.broker_names) if listener.broker_names else None,
                fallback=[Node(NO_BROKER, address.host, address.port) for address in config.upstream],
                advertised_port=listener.advertised_port,
                unknown=view.unknown_broker,
            ),
            networks_of(listener.proxy_networks),
            listener.proxy_version,
        )
        for listener in (main, *config.listeners)
    ]


def admission_limits(config: ServeConfig) -> AdmissionLimits:
    """The limits of one process: its share of the connections. A connection takes one open file, with a broker two. All
    other endpoints may have as many connections as they allow."""
    limits, grpc, otlp = config.gateway, config.grpc, config.otlp
    receivers = ((grpc.listen, grpc), (otlp.grpc, otlp), (otlp.http, otlp))
    callers = sum(receiver.max_connections for address, receiver in receivers if address is not None)
    files = open_files() - (_OTHER_OPEN_FILES + HTTP_CONNECTIONS + callers)
    room = max(files // (2 if config.upstream else 1), 1)
    share = min(ceil(limits.max_connections / config.processes), room)
    per_address = limits.max_connections_per_address
    return AdmissionLimits(
        max_connections=share,
        max_connections_per_address=share * 3 // 4 or 1
        if per_address is None
        else ceil(per_address / config.processes),
        max_held_bytes=limits.max_held_bytes,
        frame_timeout_s=limits.frame_timeout_ms / 1000,
        handshake_timeout_s=limits.handshake_timeout_ms / 1000,
        idle_timeout_s=limits.idle_timeout_ms / 1000,
    )


def administrators(config: ServeConfig) -> Administrators:
    """Who may alter the subscriptions of a stand-alone sink."""
    settings = config.administration
    if not settings.enabled:
        return Administrators([])
    return Administrators(networks_of(settings.networks), settings.principals)


def subscriptions_path(config: ServeConfig) -> Path:
    """The subscription file of a listener without a cluster."""
    return config.subscriptions or config.data / "subscriptions.yaml"


def listener_readings(gateway: Gateway) -> dict[SelfMetric, Values]:
    return receiver_readings(gateway.receiver) | {
        catalogue.CONNECTIONS: len(gateway.clients),
        catalogue.CONNECTIONS_TOTAL: gateway.connections_total,
        catalogue.PROTOCOL_ERRORS: gateway.protocol_errors,
        catalogue.CONNECTIONS_REFUSED: {str(reason): count for reason, count in gateway.admission.refused.items()},
        catalogue.CONNECTIONS_CLOSED: {str(reason): count for reason, count in gateway.admission.closed.items()},
        catalogue.HELD_BYTES: gateway.admission.held_bytes,
        catalogue.UPSTREAM_FAILURES: gateway.upstream_failures,
        catalogue.FLUSH_FAILURES: gateway.commit.failures,
    }


def loaded_subscriptions(path: Path, rules: ClientMetrics) -> SubscriptionFile:
    """Loads the file's subscriptions into the rules. Raises ServeError with all errors in the file."""
    file = SubscriptionFile(path, rules, now_ms)
    try:
        file.load()
    except SubscriptionFileError as exc:
        raise ServeError("; ".join(f"{path}: {fault}" for fault in exc.faults)) from exc
    except (OSError, ValueError) as exc:
        raise ServeError(f"cannot read subscriptions: {exc}") from exc
    return file


def subscriptions_task(
    config: ServeConfig, rules: ClientMetrics, refresh: Callable[[], Awaitable[None]]
) -> PeriodicTask:
    """`refresh` updates the subscriptions; the task also removes expired instances."""

    async def step() -> None:
        rules.instances.expire(monotonic_ms())
        await refresh()

    return PeriodicTask("subscriptions", config.telemetry.refresh_ms, step)
