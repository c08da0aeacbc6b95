"""`headroom serve` without --upstream: builds and opens a listener for telemetry only.

It is its own cluster, named by --cluster or by a Kafka Uuid that is generated once and stored in the data directory.
"""

from __future__ import annotations

import re
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from exporters.spool.writer import PushSpool
from headroom.clock import now_ms
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from headroom.server.listeners.gateway import NetworkService, open_network
from headroom.server.periodic import first
from headroom.server.processes.assembly import (
    administrators,
    listener_readings,
    loaded_subscriptions,
    new_gateway,
    subscriptions_path,
    subscriptions_task,
    telemetry_receiver,
)
from telemetry.gateway.standalone_broker import SinkAnswers
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.subscription_file import SubscriptionFile

_CLUSTER_ID = "cluster-id"


async def open_sink(config: ServeConfig, pushes: PushSpool, stack: AsyncExitStack) -> NetworkService:
    """Raises ServeError. `stack` closes what is opened."""
    name = config.cluster or _cluster_id(config.data / _CLUSTER_ID)
    receiver = telemetry_receiver(config, pushes)
    path = subscriptions_path(config)
    if config.subscriptions or path.exists():
        file = loaded_subscriptions(path, receiver.rules)
    else:  # it is created with the first subscription
        file = SubscriptionFile(path, receiver.rules, now_ms)
    answers = SinkAnswers(name, file, administrators(config))
    gateway = new_gateway(config, name, receiver, pushes, local=answers.found_at)
    address, network = await open_network(config, gateway, [], stack)

    async def refresh() -> None:
        file.follow()

    followed = subscriptions_task(config, receiver.rules, refresh)

    async def follow(_: ServeConfig) -> None:
        await first(followed)

    return NetworkService(address, [followed], lambda: listener_readings(gateway), gateway, network, follow)


def _cluster_id(path: Path) -> str:
    try:
        if path.exists() and re.fullmatch(r"[\w-]{22}", stored := path.read_text("utf-8").strip()):
            return stored
        drawn = "-"
        while "-" in drawn:  # like Kafka's Uuid.randomUuid(): command lines may read '-' as an option
            drawn = uuid_text(uuid.uuid4().bytes)
        path.write_text(f"{drawn}\n", "utf-8")
    except OSError as exc:
        raise ServeError(f"cannot store the cluster's id in {path}: {exc.strerror}") from exc
    return drawn
