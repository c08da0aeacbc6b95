"""Rows of quota_usage: what tests insert, many that ClickHouse makes, and fleets drawn at random."""

import itertools
import math
import random
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from exporters.model import QuotaLimit
from telemetry.ingest.arrow_tables import limits_table
from tests.kit.windows_reference import Row

MINUTE = 60_000
_WEEK_MS = 7 * 86_400_000
_A_FRIDAY_MS = 1_795_168_800_000  # 2026-11-20, 10:00 UTC
# 10:00 UTC on the last Friday that was over two hours ago: the weekday is fixed, because forecasts depend on it, and no
# table's TTL removes the rows.
FRIDAY_MS = _A_FRIDAY_MS + (int(time.time() * 1000) - 2 * 3_600_000 - _A_FRIDAY_MS) // _WEEK_MS * _WEEK_MS
START = FRIDAY_MS
PRODUCE = "producer_byte_rate"
_numbers = itertools.count(1)
_TYPES: dict[str, pa.DataType] = {
    "ts": pa.timestamp("ms", "UTC"),
    "limit": pa.float64(),
    "limit_known": pa.uint8(),
    "broker_id": pa.int32(),
    **dict.fromkeys(("bytes", "requests", "throttled_requests"), pa.uint64()),
    **dict.fromkeys(("interval_ms", "muted_ms"), pa.uint32()),
}
_STALLS = [1] * 18 + [2, 3]  # how many intervals a row covers: its process was stopped
_HOSTILE = [math.nan, math.inf, -math.inf, -5.0, 1e16, 1e308]

# Samples of many clients that ClickHouse makes itself: one a second of each, one quota for each.
# Received long ago: an hour with rows from just before its computation is computed again by the next job.
FILL_SECONDS = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, muted_ms, limit, matched_entity, bucket_user, bucket_client_id,
    received_at)
SELECT {cluster:String}, 'producer_byte_rate',
    fromUnixTimestamp64Milli(toInt64({start:Int64} + intDiv(number, {clients:UInt32}) * 1000)) AS ts,
    concat('user-', toString(number % 50)), concat('client-', toString(number % {clients:UInt32})), '',
    1 + number % {clients:UInt32} % 3, 1000, 1000 * (1 + number % 7) + intHash32(number) % 500,
    if(intHash32(number) % 2000 = 0, 700, 0), 0, 'gateway', 'g', 1000,
    if(intHash32(number) % 2000 = 0, 700, 0), 10000, 'user=<default>, client-id=<default>',
    concat('user-', toString(number % 50)),
    concat('client-', toString(number % {clients:UInt32})), ts
FROM numbers({first:UInt64}, {rows:UInt64})"""


def insert_usage(store: Any, cluster: str, at_ms: Any, rate: Any, **columns: Any) -> None:
    """Rows of a gateway at each of `at_ms`. `rate` and `columns`: a value for each row, or one for all."""
    every = {"cluster": cluster, "quota_key": PRODUCE, "broker_id": 1, "source": "gateway", "rate": rate} | columns
    table = {"ts": pa.array(at_ms, _TYPES["ts"])}
    for name, values in every.items():
        alike = values is None or isinstance(values, (str, float, int))
        table[name] = pa.array([values] * len(at_ms) if alike else values, _TYPES.get(name))
    store.insert("quota_usage", pa.table(table), token=f"{cluster}/{next(_numbers)}")


def insert_limits(store: Any, cluster: str, from_ms: int, limits: Mapping[str, float]) -> None:
    """Quotas of users on what they produce, from `from_ms` on."""
    rows = [QuotaLimit(cluster, user, "", "", PRODUCE, from_ms, limit) for user, limit in limits.items()]
    store.insert("quota_limits", limits_table(rows, from_ms), token=f"{cluster}/{next(_numbers)}")


def insert(store: Any, rows: list[Row], cluster: str, *, bare: bool = False) -> None:
    """`bare`: without the columns that other collectors do not fill."""
    names = ("user", "client_id", "quota_key", "broker_id", "throttle_ms") if bare else Row._fields[1:]
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in names if name != "rate"}
    insert_usage(store, cluster, [row.at_ms for row in rows], [row.rate for row in rows], **columns)


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
                cadence * random_.choice(_STALLS),
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
                cadence * random_.choice(_STALLS),
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


def stored_minute(store: ClickHouse, start_ms: int) -> pa.Table:
    """The rows of usage_1m of a minute."""
    sql = """
    SELECT * EXCEPT (newest, computed_at) FROM usage_1m FINAL
    WHERE toUnixTimestamp(window_start) * 1000 = {start_ms:Int64} AND (samples > 0 OR throttle_ms > 0)
    """
    return store.table(sql, {"start_ms": start_ms})
