"""Rows of quota_usage: what tests insert, and fleets drawn at random."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pyarrow as pa

from tests.kit.recent import FRIDAY_MS
from tests.kit.windows_reference import Row

MINUTE = 60_000
START = FRIDAY_MS
PRODUCE = "producer_byte_rate"
_numbers = itertools.count(1)
_HOSTILE = [math.nan, math.inf, -math.inf, -5.0, 1e16, 1e308]


def insert(store: Any, rows: list[Row], cluster: str, *, bare: bool = False) -> None:
    """`bare`: without the columns that other collectors do not fill."""
    table: dict[str, Any] = {
        "cluster": pa.array([cluster] * len(rows)),
        "quota_key": pa.array([row.quota_key for row in rows]),
        "ts": pa.array([row.at_ms for row in rows], pa.timestamp("ms", "UTC")),
        "user": pa.array([row.user for row in rows]),
        "client_id": pa.array([row.client_id for row in rows]),
        "ip": pa.array([""] * len(rows)),
        "broker_id": pa.array([row.broker_id for row in rows], pa.int32()),
        "bytes": pa.array([0] * len(rows), pa.uint64()),
        "rate": pa.array([row.rate for row in rows]),
        "throttle_ms": pa.array([row.throttle_ms for row in rows]),
        "throttled_requests": pa.array([0] * len(rows), pa.uint64()),
        "source": pa.array(["gateway"] * len(rows)),
    }
    if not bare:
        table |= {
            "gateway_id": pa.array([row.gateway_id for row in rows]),
            "interval_ms": pa.array([row.interval_ms for row in rows], pa.uint32()),
            "muted_ms": pa.array([row.muted_ms for row in rows], pa.uint32()),
            "limit": pa.array([row.limit for row in rows], pa.float64()),
            "limit_known": pa.array([row.limit_known for row in rows], pa.uint8()),
            "matched_entity": pa.array([row.matched_entity for row in rows]),
            "bucket_user": pa.array([row.bucket_user for row in rows]),
            "bucket_client_id": pa.array([row.bucket_client_id for row in rows]),
            "decided_by": pa.array([row.decided_by for row in rows]),
            "implied_limit": pa.array([row.implied_limit for row in rows]),
        }
    store.insert("quota_usage", pa.table(table), token=f"{cluster}/{next(_numbers)}")


def drawn(random_: random.Random) -> list[Row]:
    """Rows from two gateways for clients of two users, whose user-level quota may be unknown."""
    rows: dict[Any, Row] = {}
    shape = random_.choice(["bare", "seconds", "ten seconds", "mixed"])
    for user, client_id in itertools.product(("u1", "u2"), ("a", "b", "c")):
        known = user == "u1"
        cadence = {"bare": 0, "seconds": 1000, "ten seconds": 10_000}.get(shape, random_.choice([0, 1000, 10_000]))
        step_ms = cadence or random_.choice([1000, 7000, 10_000])
        for at in range(START - 11 * MINUTE, START + 3 * MINUTE, step_ms):
            if random_.random() < 0.5:
                continue
            limit, limit_known, bucket_client_id = (500.0, 1, "") if known else (None, 0, client_id)
            at_ms = at + (random_.randrange(1000) if cadence == 1000 and random_.random() < 0.1 else 0)
            row = Row(
                at_ms,
                user,
                client_id,
                random_.randint(1, 2),
                random_.choice(_HOSTILE) if random_.random() < 0.03 else float(random_.randrange(1000)),
                random_.choice([0.5, 20.0, 700.0, 90_000.0, math.nan, -3.0]) if random_.random() < 0.02 else 0.0,
                random_.choice(["g1", "g2"]),
                cadence,
                limit,
                limit_known,
                user,
                bucket_client_id,
                random_.choice([7, 300, 1000, 4_000_000_000]) if random_.random() < 0.05 else 0,
            )
            rows[row.at_ms, user, client_id, row.broker_id, row.gateway_id] = row
    return list(rows.values())


_ENTITIES = (("user={user}", True, False), ("client-id={client_id}", False, True), ("both", True, True))


def changing(random_: random.Random, *, minutes: int = 3, prefix: str = "") -> list[Row]:
    """A fleet whose limits and rules change, which two gateways notice at different times, or not yet."""
    cadence = random_.choice([0, 1000, 1000, 10_000])
    step_ms = cadence or random_.choice([1000, 3000])
    rows: list[Row] = []
    clients = [(f"{prefix}{user}", f"{prefix}{client_id}") for user in ("u1", "u2") for client_id in ("a", "b")]
    seconds = range(0, 60 * minutes, step_ms // 1000)
    changes = sorted(random_.sample(range(60 * minutes), random_.choice([0, 1, 1, 2, 3])))
    regimes = [
        (random_.choice([None, 0.0, 300.0, 900.0, 1e16]), random_.choice(_ENTITIES)) for _ in range(len(changes) + 1)
    ]
    callback = random_.choice(["", "", "", "io.strimzi.StaticQuotaCallback"])
    implied = random_.choice([None, None, 100.0, 290.0, 900.0])
    lag_s = {"g1": 0, "g2": random_.choice([0, 0, 5, 30])}
    known_from_s = {"g1": random_.choice([0, 0, 0, 20, 75, 600]), "g2": random_.choice([0, 0, 600])}
    for (user, client_id), second, gateway in itertools.product(clients, seconds, ("g1", "g2")):
        if random_.random() < 0.3:
            continue
        limit, (entity, by_user, by_client) = regimes[sum(change + lag_s[gateway] <= second for change in changes)]
        known = int(second >= known_from_s[gateway])
        rows.append(
            Row(
                START + second * 1000,
                user,
                client_id,
                1 + (client_id.endswith("b") and random_.random() < 0.2),
                float(random_.randrange(0, 600)),
                random_.choice([20.0, 700.0, 4000.0]) if random_.random() < 0.01 else 0.0,
                gateway,
                cadence,
                limit if known else None,
                known,
                user if known and limit is not None and by_user else "",
                client_id if known and limit is not None and by_client else "",
                random_.choice([7, 300, 1000]) if random_.random() < 0.02 else 0,
                PRODUCE,
                entity.format(user=user, client_id=client_id) if known and limit is not None else "",
                callback if random_.random() < 0.9 else "",
                random_.choice([*_HOSTILE, implied, implied, implied]) if implied and random_.random() < 0.05 else 0.0,
            )
        )
    return rows
