"""What both kinds of front have: the telemetry door, its limits and readings, subscriptions of a file."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from exporters.spool import SpoolWriter
from headroom.chores import Chore
from headroom.clock import now_ms
from headroom.config import ServeConfig
from headroom.errors import ServeError
from headroom.metrics import Readings, door_readings
from telemetry.exchanges import Limits
from telemetry.gateway import Gateway
from telemetry.push import TelemetryDoor
from telemetry.subscription_config import EXTRA_MATCH_KEYS, MATCH_KEYS
from telemetry.subscription_file import SubscriptionFile, SubscriptionFileError
from telemetry.subscriptions import ClientMetrics


class Front(NamedTuple):
    """What clients see: where, what is done beside by the clock, what it has to tell."""

    address: tuple[str, int]
    chores: list[Chore]
    readings: Readings


def telemetry_door(config: ServeConfig, pushes: SpoolWriter) -> TelemetryDoor:
    """The door with rules that know no subscriptions yet."""
    rules = ClientMetrics(
        new_id=lambda: uuid.uuid4().bytes,
        max_instances=config.telemetry.max_instances,
        match_keys=EXTRA_MATCH_KEYS if config.telemetry.extra_selectors else MATCH_KEYS,
    )
    return TelemetryDoor(rules, append=pushes.append, telemetry_max_bytes=config.telemetry.max_bytes)


def connection_limits(config: ServeConfig) -> Limits:
    """Of each connection of a client."""
    return Limits(
        max_request_bytes=config.gateway.max_request_bytes,
        max_held_request_bytes=2 * config.telemetry.max_bytes + 65_536,
    )


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
