"""Answers to our own requests: whatever a cluster sends, its readers raise ClusterError or return facts."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from quota_metrics.cluster.document import document, stored_facts
from quota_metrics.cluster.facts import ClusterFacts
from quota_metrics.cluster.reading import read_callback_classes, read_facts
from quota_metrics.config.entities import QuotaAlteration, entity_of, stored_rules
from quota_metrics.config.resolution import Resolver
from quota_metrics.config.timeline import LimitHistory
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import alter_subscription, read_subscriptions
from quota_metrics.kafka.errors import ClusterError, UnsupportedError
from quota_metrics.kafka.frames import NegotiatedRequest, ReadBody, decoded, encoded
from quota_metrics.kafka.primitives import ProtocolError
from tests.kit.kio_entities import encode, random_entity

SENT = (3, 18, 29, 32, 35, 41, 44, 46, 48, 49, 50, 74)  # the keys of the APIs that Headroom sends
_NAMES = (
    "quota.window.num",
    "quota.window.size.seconds",
    "max.connections.per.ip",
    "follower.replication.throttled.rate",
)
_TOPICS = [bytes(16), bytes(15) + b"\1"]

Target = Callable[[bytes], None]


class HostileCluster(KafkaAdmin):
    """Answers each request in any version: one API with the given bytes, the others with entities drawn at random."""

    def __init__(self, source: random.Random, key: int, version: int, answer: bytes) -> None:
        super().__init__([("127.0.0.1", 1)])
        self._source, self._key, self._version, self._answer = source, key, version, answer

    async def send(
        self, request: NegotiatedRequest, *, node_id: int | None = None, read: ReadBody | None = None
    ) -> Any:
        if self._source.random() < 0.02:
            raise UnsupportedError(request.name)
        is_given = request.key == self._key and self._version in request.versions
        version = self._version if is_given else self._source.choice(list(request.versions))
        sent = request.in_version(version)
        encoded(sent, 1, "fuzz")
        tags = b"\0" if load_response_schema(request.key, version).__header_schema__.__version__ else b""
        body = self._answer if is_given else drawn(self._source, request.key, version)
        try:
            return decoded(sent, b"\0\0\0\1" + tags + body, read)
        except ProtocolError as exc:
            raise ClusterError(str(exc)) from exc


def drawn(source: random.Random, key: int, version: int) -> bytes:
    """A response that kio writes, mostly without errors and with names that readers look for."""
    return encode(_calmed(source, random_entity(source, load_response_schema(key, version))))


def _calmed(source: random.Random, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_calmed(source, item) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {field.name: _calmed(source, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if "error_code" in changed and source.random() < 0.95:
        changed["error_code"] = ErrorCode.none
    if "config_source" in changed or "is_default" in changed:
        changed |= {"name": source.choice(_NAMES), "value": str(source.choice([0, 1, -1, 10**30, "x", ""]))}
    if "resource_name" in changed and source.random() < 0.5:
        changed["resource_name"] = "1"
    if {"node_id", "host", "port"} <= changed.keys() and source.random() < 0.8:
        changed |= {"node_id": type(changed["node_id"])(1), "host": "b", "port": type(changed["port"])(9092)}
    return type(value)(**changed)


@cache
def _seeds(key: int, version: int) -> list[bytes]:
    source = random.Random(f"{key}/{version}")
    return [drawn(source, key, version) for _ in range(3)]


def admin_targets(source: random.Random) -> dict[str, tuple[Target, list[bytes]]]:
    """One for each version of each API that Headroom asks a cluster for."""
    return {
        f"answer {key} {version}": (partial(_read, source, key, version), _seeds(key, version))
        for key in SENT
        for version in schema_name_map[api_key_map[key]]
    }


def _read(source: random.Random, key: int, version: int, data: bytes) -> None:
    admin = HostileCluster(source, key, version, data)

    async def ask() -> None:
        for reader in _READERS:
            with contextlib.suppress(ClusterError):
                await reader(admin)

    asyncio.run(ask())


async def _facts(admin: KafkaAdmin) -> None:
    facts = await read_facts(admin)
    list(facts.remarks())
    document(facts, ())
    stored_facts(facts, ClusterFacts(), "c", 1)
    facts.completed_by(facts).window_at(1)


async def _quotas(admin: KafkaAdmin) -> None:
    rules = stored_rules(await admin.describe_client_quotas())
    LimitHistory("c").changes(rules, 1)
    Resolver(rules).resolve("a", "b", "10.0.0.1")


_READERS: tuple[Callable[[KafkaAdmin], Awaitable[object]], ...] = (
    _facts,
    _quotas,
    lambda admin: admin.alter_client_quotas([QuotaAlteration(entity_of({"user": "a"}), {"producer_byte_rate": 1.0})]),
    read_callback_classes,
    read_subscriptions,
    KafkaAdmin.describe_token_owners,
    lambda admin: admin.topic_names(_TOPICS),
    lambda admin: alter_subscription(admin, "a", {"metrics": "*"}),
)
