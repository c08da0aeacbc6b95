"""What both kinds of front have: the telemetry door, its limits and readings, subscriptions of a file."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from exporters.spool import SpoolWriter
from headroom.chores import Chore
from headroom.clock import now_ms
from headroom.config import ServeConfig, TelemetryConfig
from headroom.errors import ServeError, listening
from headroom.metrics import Readings, door_readings
from headroom.network_processes import NetworkProcesses, Take
from telemetry.doors import BrokerNode, Doors
from telemetry.errors import ErrorCode
from telemetry.exchanges import Limits, LocalAnswer, Observe
from telemetry.gateway import Gateway
from telemetry.push import TelemetryDoor
from telemetry.subscription_config import EXTRA_MATCH_KEYS, MATCH_KEYS
from telemetry.subscription_file import SubscriptionFile, SubscriptionFileError
from telemetry.subscriptions import ClientMetrics


class Front(NamedTuple):
    """What clients see: where, what is done beside by the clock, what it has to tell, what other doors share."""

    address: tuple[str, int]
    chores: list[Chore]
    readings: Readings
    gateway: Gateway
    network: NetworkProcesses


async def open_front(
    config: ServeConfig, gateway: Gateway, nodes: Iterable[BrokerNode], take: Take, stack: AsyncExitStack
) -> tuple[tuple[str, int], NetworkProcesses]:
    """Opens the doors of this network process, then starts the others; the address. Raises ServeError."""
    address = await listening(gateway.start(nodes), config.listen)
    network = NetworkProcesses(config, address, gateway, take)
    grace_s = config.gateway.drain_ms / 1000

    async def close() -> None:
        await asyncio.gather(gateway.close(grace_s), network.stop(grace_s))

    stack.push_async_callback(close)
    await network.start()
    return address, network


def open_spool(config: ServeConfig, name: str, stack: AsyncExitStack) -> SpoolWriter:
    """A writer with segments of its own. Raises ServeError."""
    try:
        spool = SpoolWriter(
            config.data / "spool",
            name,
            segment_bytes=config.spool.segment_bytes,
            max_bytes=config.spool.max_bytes,
        )
    except OSError as exc:
        raise ServeError(f"cannot open the spool in {config.data}: {exc.strerror}") from exc
    stack.callback(spool.close)
    return spool


def sync_chore(spool: SpoolWriter, config: ServeConfig) -> Chore:
    """What makes a spool survive a power loss."""
    return Chore("sync", config.spool.sync_ms, lambda: asyncio.to_thread(spool.sync))


def push_sync_chores(pushes: SpoolWriter, config: ServeConfig) -> list[Chore]:
    """The same for pushes: none when each flush does it."""
    return [] if config.spool.fsync == "each" else [sync_chore(pushes, config)]


def push_flush(pushes: SpoolWriter, config: ServeConfig) -> Callable[[], None]:
    """What comes before the acknowledgement of pushes. It raises OSError."""
    if config.spool.fsync == "interval":
        return pushes.flush

    def flush_and_sync() -> None:
        pushes.flush()
        pushes.sync()

    return flush_and_sync


def telemetry_door(config: ServeConfig, pushes: SpoolWriter) -> TelemetryDoor:
    """The door with rules that know no subscriptions yet."""
    rules = ClientMetrics(
        new_id=lambda: uuid.uuid4().bytes,
        max_instances=config.telemetry.max_instances,
        match_keys=EXTRA_MATCH_KEYS if config.telemetry.extra_selectors else MATCH_KEYS,
    )
    return TelemetryDoor(
        rules, append=pushes.append, telemetry_max_bytes=config.telemetry.max_bytes, judge=_judge(config.telemetry)
    )


def _judge(config: TelemetryConfig) -> Callable[[int, bytes], ErrorCode] | None:
    """What decodes pushes before they are acknowledged, where that is wanted."""
    if config.validate != "door":
        return None
    from telemetry.decoder import judge  # 40 MB in each process, which nobody pays who decodes in the worker alone
    from telemetry.otlp import Limits as PayloadLimits

    return partial(judge, max_decompressed_bytes=config.max_decompressed_bytes, limits=PayloadLimits())


def new_gateway(
    config: ServeConfig,
    cluster: str,
    door: TelemetryDoor,
    pushes: SpoolWriter,
    *,
    observe: Observe,
    local: Callable[[str, int], Mapping[int, LocalAnswer]] | None = None,
    ask: Callable[[BrokerNode], None] | None = None,
) -> Gateway:
    """`local`: what answers where there is no cluster. `ask`: another process opens doors, by that it is asked to."""
    return Gateway(
        cluster=cluster,
        host=config.listen.host,
        port=config.listen.port,
        advertised_host=config.gateway.advertised_host,
        door=door,
        flush=push_flush(pushes, config),
        observe=observe,
        now_ms=now_ms,
        limits=Limits(
            max_request_bytes=config.gateway.max_request_bytes,
            max_held_request_bytes=2 * config.telemetry.max_bytes + 65_536,
        ),
        connect_timeout_s=config.gateway.connect_timeout_ms / 1000,
        local=local,
        new_doors=partial(Doors, shared=config.processes > 1 and ask is None, ask=ask),
    )


def no_exchange(**_: object) -> None:
    """There is no broker to exchange anything with."""


def subscriptions_path(config: ServeConfig) -> Path:
    """The file of a listener without a cluster."""
    return config.subscriptions or config.data / "subscriptions.yaml"


def listener_readings(gateway: Gateway) -> dict[SelfMetric, Values]:
    """What the telemetry door and the sockets counted."""
    return door_readings(gateway.door) | {
        catalogue.CONNECTIONS: gateway.counts.connections,
        catalogue.CONNECTIONS_TOTAL: gateway.counts.connections_total,
        catalogue.PROTOCOL_ERRORS: gateway.counts.protocol_errors,
        catalogue.UPSTREAM_FAILURES: gateway.counts.upstream_failures,
        catalogue.FLUSH_FAILURES: gateway.commit.failures,
    }


def loaded_subscriptions(path: Path, rules: ClientMetrics) -> SubscriptionFile:
    """The subscriptions of a file, which are the rules' from now on. Raises ServeError with all that is wrong in it."""
    file = SubscriptionFile(path, rules, now_ms)
    try:
        file.load()
    except SubscriptionFileError as exc:
        raise ServeError("; ".join(f"{path}: {fault}" for fault in exc.faults)) from exc
    except (OSError, ValueError) as exc:
        raise ServeError(f"cannot read subscriptions: {exc}") from exc
    return file


def subscriptions_chore(config: ServeConfig, rules: ClientMetrics, refresh: Callable[[], Awaitable[None]]) -> Chore:
    """`refresh` brings subscriptions up to date; instances that fell silent are forgotten with it."""

    async def step() -> None:
        rules.expire(now_ms())
        await refresh()

    return Chore("subscriptions", config.telemetry.refresh_ms, step)
