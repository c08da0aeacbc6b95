"""telemetry/subscriptions/java/hash.py compared with recorded JDK values and with a live JDK."""

from __future__ import annotations

import itertools
import random

import pytest

from headroom.demo.jvm import Jvm
from telemetry.subscriptions.java.hash import (
    ConcurrentMapKeys,
    hash_set,
    hash_set_of,
)
from telemetry.subscriptions.subscription_id import instance_subscription_id, subscription_crc

A = bytes.fromhex("00112233445566778899aabbccddeeff")
B = bytes.fromhex("0000000000000000000000000000002a")
C = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
PARTITION = "org.apache.kafka.client.producer.partition."


@pytest.mark.parametrize(
    ("client_instance_id", "metrics", "interval_ms", "crc", "expected"),
    [
        (A, [], 300_000, 3569834974, -725132322),
        (A, ["*"], 30_000, 3626624783, -668342513),
        (B, [], 300_000, 3569834974, -725132300),
        (B, ["*"], 30_000, 3626624783, -668342491),
        (C, [], 300_000, 3569834974, -2037058986),
        (C, ["*"], 30_000, 3626624783, -1971695993),
        (A, ["org.apache.kafka.producer.", "org.apache.kafka.consumer."], 60_000, 3354424504, -940542792),
        (A, [f"{PARTITION}latency", f"{PARTITION}queue."], 30_000, 2352111663, -1942855633),
        (A, ["métrique"], 100, 3907624078, -387343218),
    ],
)
def test_subscription_id_vectors(
    client_instance_id: bytes, metrics: list[str], interval_ms: int, crc: int, expected: int
) -> None:
    assert subscription_crc(metrics, interval_ms) == crc
    assert instance_subscription_id(crc, client_instance_id) == expected


def test_map_that_grows_has_each_key_once_until_it_is_removed() -> None:
    keys, names = ConcurrentMapKeys(), [f"sub-{n}" for n in range(60)]
    for name in names * 2:
        keys.put(name)
    assert sorted(keys) == sorted(names) == sorted(hash_set(names * 2))
    for name in names:
        keys.remove(name)
    assert list(keys) == []


@pytest.mark.java
def test_iteration_orders_match_the_jdk(jvm: Jvm) -> None:
    rng = random.Random(11)
    util = jvm.classes.java.util
    for _ in range(60):
        # At most 4 elements share a hash code, or in one of three cases 9, which makes a table of 16 or 32 grow; with
        # 10 the JDK would turn a bucket into a tree.
        pairs = ("Aa", "BB")
        drawn = [f"{a}{b}{n}" for a in pairs for b in pairs for n in range(40)]
        words = rng.choices([*drawn, *(f"métrique.𝒳{n}" for n in range(40))], k=60)
        words = words[: rng.choice([3, 12, 13, 25, 60])]
        if rng.random() < 1 / 3:
            colliding = ["".join(parts) for parts in itertools.product(pairs, repeat=4)]
            words = rng.sample(colliding, rng.choice([8, 9])) + words[:3]
        theirs, presized = util.HashSet(), util.HashSet(words)
        map_keys, ours = util.concurrent.ConcurrentHashMap(), ConcurrentMapKeys()
        for word in words:
            theirs.add(word)
            if rng.random() < 0.2 and map_keys.containsKey(word):
                map_keys.remove(word)
                ours.remove(word)
            else:
                map_keys.put(word, 1)
                ours.put(word)
        assert hash_set(words) == list(theirs)
        assert hash_set_of(words) == list(presized)
        assert list(ours) == list(map_keys.keySet())
