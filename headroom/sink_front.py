"""`headroom serve` without --upstream: a listener for telemetry alone, built and opened.

Its cluster is itself: named by --cluster, else by a Kafka Uuid that is drawn once and stays in the data directory.
"""

from __future__ import annotations

import re
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from exporters.spool import SpoolWriter
from headroom.clock import now_ms
from headroom.config import ServeConfig
from headroom.errors import ServeError, listening
from headroom.front import (
    Front,
    connection_limits,
    listener_readings,
    loaded_subscriptions,
    subscriptions_chore,
    telemetry_door,
)
from telemetry.gateway import Gateway
from telemetry.java_hash import uuid_text
from telemetry.sink import SinkAnswers
from telemetry.subscription_file import SubscriptionFile
from telemetry.subscriptions import ClientMetrics

_CLUSTER_ID = "cluster-id"
_SUBSCRIPTIONS = "subscriptions.yaml"


async def open_sink(config: ServeConfig, pushes: SpoolWriter, stack: AsyncExitStack) -> Front:
    """Raises ServeError. What is opened is closed by `stack`."""
    name = config.cluster or _cluster_id(config.data / _CLUSTER_ID)
    door = telemetry_door(config, pushes)
    file = _subscriptions(config, door.rules)
    gateway = Gateway(
        cluster=name,
        host=config.listen.host,
        port=config.listen.port,
        advertised_host=config.gateway.advertised_host,
        door=door,
        flush=pushes.flush,
        observe=_no_exchange,
        now_ms=now_ms,
        limits=connection_limits(config),
        connect_timeout_s=config.gateway.connect_timeout_ms / 1000,
        local=SinkAnswers(name, file).found_at,
    )
    address = await listening(gateway.start([]), config.listen)
    stack.push_async_callback(gateway.close, config.gateway.drain_ms / 1000)

    async def refresh() -> None:
        file.follow()

    chores = [subscriptions_chore(config, door.rules, refresh)]
    return Front(address, chores, lambda: listener_readings(gateway))


def _subscriptions(config: ServeConfig, rules: ClientMetrics) -> SubscriptionFile:
    """The operator's file must be there; ours comes with the first subscription."""
    if config.subscriptions:
        return loaded_subscriptions(config.subscriptions, rules)
    path = config.data / _SUBSCRIPTIONS
    return loaded_subscriptions(path, rules) if path.exists() else SubscriptionFile(path, rules, now_ms)


def _cluster_id(path: Path) -> str:
    try:
        if path.exists() and re.fullmatch(r"[\w-]{22}", known := path.read_text("utf-8").strip()):
            return known
        drawn = "-"
        while "-" in drawn:  # as Kafka's Uuid.randomUuid(): command lines take it for an option
            drawn = uuid_text(uuid.uuid4().bytes)
        path.write_text(f"{drawn}\n", "utf-8")
    except OSError as exc:
        raise ServeError(f"cannot keep the cluster's id in {path}: {exc.strerror}") from exc
    return drawn


def _no_exchange(**_: object) -> None:
    """There is no broker to exchange anything with."""
