"""Resolving 100,000 (user, client-id) pairs over 10,000 rules: `python -m tests.bench.quotas.resolution [seed]`.

The baseline, a naive scan, checks every rule for every pair; it is timed on fewer pairs and extrapolated.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable

from quota_metrics.config.entities import Entity, Rules, entity_of
from quota_metrics.config.resolution import CLIENT_KEYS, PRECEDENCE, Named, Resolver

RULES, PAIRS, SCANNED_PAIRS = 10_000, 100_000, 100
NAMES = 3_000

Pair = tuple[str, str]
Quotas = dict[str, float]


def made(rng: random.Random) -> tuple[Rules, list[Pair]]:
    rules: dict[Entity, dict[str, float]] = {}
    while len(rules) < RULES:
        user = rng.choice([None, f"user-{rng.randrange(NAMES)}"])
        client_id = rng.choice([None, f"client-{rng.randrange(NAMES)}"])
        entity = rng.choice([{"user": user}, {"client-id": client_id}, {"user": user, "client-id": client_id}])
        rules[entity_of(entity)] = {key: rng.uniform(1, 1e9) for key in CLIENT_KEYS}
    return rules, [(f"user-{rng.randrange(NAMES)}", f"client-{rng.randrange(NAMES)}") for _ in range(PAIRS)]


def scan(rules: Rules, pair: Pair) -> Quotas:
    """Checks every rule; the most specific one that matches wins."""
    best: dict[str, tuple[int, float]] = {}
    for entity, values in rules.items():
        names = dict(entity)
        if all(
            name is None or name == dict(zip(("user", "client-id"), pair, strict=True))[kind] for kind, name in entity
        ):
            spelled = tuple(
                Named.ABSENT if kind not in names else Named.DEFAULT if names[kind] is None else Named.EXACT
                for kind in ("user", "client-id")
            )
            for key, value in values.items():
                best[key] = min(best.get(key, (len(PRECEDENCE), 0.0)), (PRECEDENCE.index(spelled), value))
    return {key: value for key, (_, value) in best.items()}


def seconds(task: Callable[[], object]) -> float:
    begun = time.process_time()
    task()
    return time.process_time() - begun


def main(seed: int) -> None:
    rules, pairs = made(random.Random(seed))
    tracemalloc.start()
    resolver = Resolver(rules)
    mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    for pair in pairs[:SCANNED_PAIRS]:
        assert {key: quota.value for key, quota in resolver.resolve(*pair).items()} == scan(rules, pair)
    ours = seconds(lambda: sum(len(resolver.resolve(*pair)) for pair in pairs))
    scanned = seconds(lambda: [scan(rules, pair) for pair in pairs[:SCANNED_PAIRS]]) / SCANNED_PAIRS * PAIRS
    print(f"bench resolve_100k_pairs_10k_rules value={ours:.2f} unit=s ratio={scanned / ours:.0f} baseline=naive_scan")
    print(f"bench resolver_memory_10k_rules value={mib:.1f} unit=MiB ratio=1 baseline=itself")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
