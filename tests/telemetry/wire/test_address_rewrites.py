"""Rewritten responses, version by version, decoded by kio's generated schema as a second implementation."""

import dataclasses
import random
import struct
from typing import Any

import pytest

from telemetry.wire import address_rewrites as addresses
from telemetry.wire.apis import APIS
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type, random_entity


def produce(body: bytes, version: int, address_of: addresses.AddressOf) -> bytes:
    return addresses.produce(b"head" + body, 4, version, address_of)[0] or body


REWRITTEN: dict[str, tuple[addresses.Rewrite, range]] = {
    "metadata": (addresses.metadata, range(14)),
    "find_coordinator": (addresses.find_coordinator, range(7)),
    "describe_cluster": (addresses.describe_cluster, range(3)),
    "produce": (produce, range(3, 14)),
    "share_fetch": (addresses.share_fetch, range(1, 3)),
    "share_acknowledge": (addresses.share_acknowledge, range(1, 3)),
}
CASES = [(name, version) for name, (_, versions) in REWRITTEN.items() for version in versions]


def receiver(node_id: int, host: str, port: int) -> tuple[str, int]:
    return f"gateway-of-{host[:20]}", node_id % 60_000


def moved(value: Any) -> Any:
    """The expected result: the same response with each address replaced."""
    if isinstance(value, tuple):
        return tuple(moved(item) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {f.name: moved(getattr(value, f.name)) for f in dataclasses.fields(value)}
    node_id = changed.get("node_id", changed.get("broker_id", -1))
    if {"host", "port"} <= changed.keys() and node_id >= 0:
        before: Any = value
        host, port = receiver(node_id, before.host, before.port)
        changed |= {"host": host, "port": type(before.port)(port)}
    return type(value)(**changed)


@pytest.mark.parametrize(("api", "version"), CASES)
def test_only_addresses_are_rewritten(api: str, version: int) -> None:
    entity_type = message_type(api, version, "response")
    rng = random.Random(version)
    for _ in range(20):
        entity = random_entity(rng, entity_type)
        if api == "describe_cluster" and version >= 1:
            entity = dataclasses.replace(entity, endpoint_type=type(entity.endpoint_type)(1))
        body = encode(entity)
        assert decode(entity_type, REWRITTEN[api][0](body, version, receiver)) == moved(entity)


def test_controller_endpoints_are_not_rewritten() -> None:
    rng = random.Random(2)
    for _ in range(20):
        entity = random_entity(rng, message_type("describe_cluster", 2, "response"))
        body = encode(dataclasses.replace(entity, endpoint_type=type(entity.endpoint_type)(2)))
        assert addresses.describe_cluster(body, 2, receiver) == body


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_rewrite_returns_throttle_time(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        entity = random_entity(rng, message_type("produce", version, "response"))
        expected = round(entity.throttle_time.total_seconds() * 1000)
        assert addresses.produce(encode(entity), 0, version, receiver)[1] == expected


def offered(body: bytes, version: int) -> dict[int, tuple[int, int]]:
    entity = decode(message_type("api_versions", version, "response"), body)
    return {int(k.api_key): (int(k.min_version), int(k.max_version)) for k in entity.api_keys}


def broker_list(version: int, keys: dict[int, tuple[int, int]]) -> bytes:
    rows = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in keys.items()]
    return encode(entity_of_fields(message_type("api_versions", version, "response"), {"api_keys": rows}))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_adds_telemetry_and_caps_versions(version: int) -> None:
    body = broker_list(version, {0: (0, 99), 1: (4, 19), 3: (0, 12), 17: (0, 1), 18: (0, 5), 4711: (0, 3)})
    assert offered(addresses.api_versions(body, version), version) == {
        0: (0, APIS[0].max_version),
        1: (4, 18),
        3: (0, 12),
        17: (0, 1),
        18: (0, 4),
        71: (0, 0),
        72: (0, 0),
    }


def test_unsupported_version_response_is_forwarded_unchanged() -> None:
    body = struct.pack(">hihhh", 35, 1, 18, 0, 3)
    assert addresses.api_versions(body, 4) == body
