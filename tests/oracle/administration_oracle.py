"""Compares our responses to random administration requests with a real broker's, byte for byte.

A case is one request: IncrementalAlterConfigs, AlterConfigs, DescribeConfigs or ListConfigResources, in any version,
valid or not. Left out is what must not be done to a broker (an unknown operation takes its controller down, a legacy
request with a resource twice is never answered), and other resources than CLIENT_METRICS, but those of no known type.
"""

import random
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from telemetry.subscriptions import config_admin as administration
from telemetry.subscriptions.java.hash import ConcurrentMapKeys
from telemetry.subscriptions.subscription import MATCH_KEYS
from telemetry.wire.apis import ALTER_CONFIGS, APIS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES
from telemetry.wire.config_messages import Operation, ResourceType
from tests.kit.kio_entities import decode, encode, entity_of_fields, message_type
from tests.kit.raw_connection import PATIENCE_S, RawConnection
from tests.oracle.subjects import print_differences

CLIENT_METRICS = int(ResourceType.CLIENT_METRICS)
SET, DELETE, APPEND, SUBTRACT = map(int, Operation)

MODULES = {
    INCREMENTAL_ALTER_CONFIGS: "incremental_alter_configs",
    ALTER_CONFIGS: "alter_configs",
    DESCRIBE_CONFIGS: "describe_configs",
    LIST_CONFIG_RESOURCES: "list_config_resources",
}

KEYS = ["metrics", "interval.ms", "match"]
OTHER_KEYS = ["foo", "interval", "zip", "bar", "Metrics"]
VALUES = {
    "metrics": ["a", "a, b", "x,,", "", "*", "org.apache.kafka.", " a ,a"],
    "interval.ms": ["100", "99", "3600000", "3600001", "+5000", " 7000", "abc", "", "2147483648", "٣٠٠٠"],
    "match": [
        "client_id=a",
        "client_id=a,client_software_name=.*",
        "client_id",
        "client_id=[",
        "client_id==a",
        "client_id=a=",
        "",
        " client_id = b ",
        "principal=x",
    ],
}


def _request(api_key: int, version: int, **fields: Any) -> bytes:
    return encode(entity_of_fields(message_type(MODULES[api_key], version, "request"), fields))


def decoded(api_key: int, version: int, body: bytes) -> Any:
    """A response as kio reads it, to its last byte."""
    return decode(message_type(MODULES[api_key], version, "response"), body)


def _altered(resources: Iterable[tuple[int, str, Iterable[Any]]], fields: Sequence[str]) -> list[dict[str, Any]]:
    """`fields`: what each key of a resource consists of."""
    return [
        {"resource_type": kind, "resource_name": name, "configs": [dict(zip(fields, key, strict=True)) for key in keys]}
        for kind, name, keys in resources
    ]


def incremental(
    version: int,
    resources: Iterable[tuple[int, str, Sequence[tuple[str, int, str | None]]]],
    *,
    validate_only: bool = False,
) -> bytes:
    """IncrementalAlterConfigs: (type, name, [(key, operation, value)])."""
    altered = _altered(resources, ("name", "config_operation", "value"))
    return _request(INCREMENTAL_ALTER_CONFIGS, version, resources=altered, validate_only=validate_only)


def legacy(
    version: int, resources: Iterable[tuple[int, str, Sequence[tuple[str, str | None]]]], *, validate_only: bool = False
) -> bytes:
    """AlterConfigs: (type, name, [(key, value)])."""
    altered = _altered(resources, ("name", "value"))
    return _request(ALTER_CONFIGS, version, resources=altered, validate_only=validate_only)


def describe(
    version: int,
    resources: Iterable[tuple[int, str, Sequence[str] | None]],
    *,
    synonyms: bool = False,
    documentation: bool = False,
) -> bytes:
    """DescribeConfigs: (type, name, keys or None for all)."""
    described = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    flags = {"include_synonyms": synonyms, "include_documentation": documentation}
    return _request(DESCRIBE_CONFIGS, version, resources=described, **flags)


def listing(version: int, kinds: Sequence[int] = ()) -> bytes:
    return _request(LIST_CONFIG_RESOURCES, version, resource_types=kinds)


class Comparison:
    """Sends equal requests to a broker and to us. The names of all resources begin with `prefix`."""

    def __init__(self, broker: RawConnection, prefix: str, rng: random.Random) -> None:
        self.differences: list[str] = []
        self._broker = broker
        self._rng = rng
        self._names = [f"{prefix}-a", f"{prefix}-b", f"{prefix}-ä"]
        self._resources: dict[str, dict[str, str]] = {}

    def step(self) -> None:
        step = self._rng.choice([self._alter, self._alter, self._alter, self._describe, self._list])
        step()

    def clear(self) -> None:
        """Leaves nothing behind in the broker."""
        keys = [(key, DELETE, None) for key in KEYS]
        self._broker.ask(44, 1, incremental(1, [(CLIENT_METRICS, name, keys) for name in self._names]))

    def _alter(self) -> None:
        api_key = self._rng.choice([INCREMENTAL_ALTER_CONFIGS] * 3 + [ALTER_CONFIGS])
        version = self._rng.randrange(APIS[api_key].max_version + 1)
        validate_only = self._rng.random() < 0.2
        if api_key == ALTER_CONFIGS:
            names = self._rng.sample([*self._names, ""], self._rng.choice([1, 1, 2]))
            plain = [(self._kind(), name, [(key, self._value(key)) for key in self._keys()]) for name in names]
            body = legacy(version, plain, validate_only=validate_only)
        else:
            names = self._rng.choices([*self._names, ""], k=self._rng.choice([1, 1, 2, 3]))
            operations = [SET] * 6 + [DELETE] * 3 + ([APPEND, SUBTRACT] if self._rng.random() < 0.2 else [])
            changes = [
                (self._kind(), name, [(key, self._rng.choice(operations), self._value(key)) for key in self._keys()])
                for name in names
            ]
            body = incremental(version, changes, validate_only=validate_only)
        alteration = administration.alter(api_key, version, body, self._resources, MATCH_KEYS)
        theirs = self._broker.ask(api_key, version, body)
        if alteration.answer() != theirs:
            self._differs(api_key, version, body, theirs, alteration.answer())
        for name, values in alteration.changes.items():
            self._resources[name] = values
        self._resources = {name: values for name, values in self._resources.items() if values}

    def _describe(self) -> None:
        version = self._rng.randrange(1, 5)
        resources = [
            (self._kind(), self._rng.choice([*self._names, "", "none"]), self._rng.choice([None, [], ["match", "foo"]]))
            for _ in range(self._rng.randrange(4))
        ]
        flags = {"synonyms": self._rng.random() < 0.5, "documentation": self._rng.random() < 0.5}
        body = describe(version, resources, **flags)
        self._settled(DESCRIBE_CONFIGS, version, body, administration.describe(version, body, self._resources))

    def _list(self) -> None:
        listed = {found.resource_name for found in decoded(74, 0, self._broker.ask(74, 0, listing(0))).config_resources}
        if listed - set(self._names):
            return  # resources of other tests: the order of names depends on all that ever existed
        names = ConcurrentMapKeys()
        for name in self._resources:
            names.put(name)
        version = self._rng.randrange(2)
        body = listing(version, self._rng.choice([[16], [16, 2], [3, 16], [0]]))
        self._settled(LIST_CONFIG_RESOURCES, version, body, administration.list_resources(version, body, names))

    def _settled(self, api_key: int, version: int, body: bytes, ours: bytes) -> None:
        """Retries, because a broker applies its controller's decision with a delay."""
        deadline = time.monotonic() + PATIENCE_S
        while (theirs := self._broker.ask(api_key, version, body)) != ours:
            if time.monotonic() > deadline:
                self._differs(api_key, version, body, theirs, ours)
                return
            time.sleep(0.005)

    def _differs(self, api_key: int, version: int, body: bytes, theirs: bytes, ours: bytes) -> None:
        self.differences.append(f"API {api_key} version {version} {body!r}: Kafka {theirs!r}, ours {ours!r}")

    def _kind(self) -> int:
        return self._rng.choice([CLIENT_METRICS] * 9 + [3])

    def _keys(self) -> list[str]:
        if self._rng.random() < 0.7:
            return self._rng.sample(KEYS, self._rng.randrange(4))
        return self._rng.choices(KEYS + OTHER_KEYS, k=self._rng.randrange(1, 4))

    def _value(self, key: str) -> str | None:
        return self._rng.choice(VALUES.get(key, ["v"])) if self._rng.random() < 0.95 else None


def run(bootstrap: str, seed: int, cases: int) -> list[str]:
    with RawConnection(bootstrap) as broker:
        comparison = Comparison(broker, f"oracle-{seed}", random.Random(f"administration/{seed}"))
        for _ in range(cases):
            comparison.step()
        comparison.clear()
    return comparison.differences


def main(seed: int, cases: int) -> int:
    """Prints what differs and one closing line; the number of differences."""
    java = find_java()
    with LocalCluster(java, kafka_libs(java)) as cluster:
        differences = run(cluster.bootstrap, seed, cases)
    return print_differences("administration", cases, differences)


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), int(sys.argv[2])) else 0)
