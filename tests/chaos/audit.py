"""Compares the rows in ClickHouse with the acknowledged points, and Headroom's counts with each other."""

import asyncio
import time
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters.clickhouse.client import with_writer
from exporters.clickhouse.connection import Endpoint
from headroom.demo.processes import LOOPBACK
from tests.chaos.load import POINTS_PER_PUSH
from tests.chaos.victim import Headroom
from tests.kit.clickhouse import connected
from tests.kit.serving import is_at_rest

REST_TIMEOUT_S = 180.0

# Merges would hide duplicates, so they are disabled.
NO_MERGES = (
    "ALTER TABLE headroom.{table} MODIFY SETTING"
    " max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"
)

# Settings that make the server refuse inserts: no space (243), too many parts (252).
REFUSALS = ("min_free_disk_bytes_to_perform_insert = 1152921504606846976", "parts_to_throw_insert = 1")

# Hours and series whose rollup differs from the raw points.
_ROLLUPS_THAT_DIFFER = """
SELECT count() FROM (
    SELECT toStartOfHour(ts) AS hour, series_id, min(value) AS low, max(value) AS high, sum(value) AS total,
           count() AS number, argMax(value, ts) AS newest
    FROM headroom.points GROUP BY hour, series_id
) AS raw
FULL JOIN headroom.client_metrics_1h AS r ON raw.hour = r.bucket AND raw.series_id = r.series_id
WHERE (low, high, total, number, newest) != (r.min, r.max, r.sum, r.count, r.last)
"""


@dataclass
class Audit:
    """A point is one acknowledged value; `faults` lists all other discrepancies."""

    acknowledged: int
    stored: int
    lost: int
    doubled: int
    faults: list[str]
    killed: Counter[str] = field(default_factory=Counter)  # number of kills by victim
    values: Set[int] = field(default_factory=set, repr=False)  # stored points


def stop_merges(sql_port: int) -> None:
    """Stops merges of the points table until the table is dropped."""
    command(sql_port, NO_MERGES.format(table="points"))


def alter_points(sql_port: int, change: str) -> bool:
    try:
        command(sql_port, f"ALTER TABLE headroom.points {change}")
    except (ClickHouseError, OSError, ValueError):
        return False
    return True


async def rested(headroom: Headroom) -> tuple[str, bool]:
    """The counts once everything is written, and whether that happened in time."""
    deadline = time.monotonic() + REST_TIMEOUT_S
    while True:
        metrics = await asyncio.to_thread(headroom.metrics)
        # The counts on both sides of the spool agree, the spool is empty, and no hour is waiting for its rollup.
        has_rested = is_at_rest(metrics) and not metrics["headroom_rollups_pending"]
        if has_rested or time.monotonic() > deadline:
            counts = {"received": metrics["headroom_records_received_total"]}
            counts |= {state: metrics[f"headroom_records:{state}"] for state in ("written", "dropped", "buffered")}
            return " ".join(f"{name}={count:.0f}" for name, count in counts.items()), has_rested
        await asyncio.sleep(0.5)


def audit(server: int | Endpoint, acknowledged: Set[int], *, after_faults: bool = False) -> Audit:
    """Reads without FINAL, so that no duplicate is hidden. `after_faults`: some pushes were refused or replayed.

    `server`: the port of a managed server, or a node of a cluster.
    """
    rows = _rows(server, "SELECT toUInt64(value) AS v, count() FROM headroom.points GROUP BY v")
    stored = dict(rows)
    [(pushes, unique, good)] = _rows(
        server, "SELECT count(), uniqExact(push_id), countIf(error_code = 0) FROM headroom.pushes"
    )
    faults = []
    if pushes != unique:
        faults.append(f"{pushes - unique} rows of pushes are doubled")
    if not after_faults and (good * POINTS_PER_PUSH != sum(stored.values()) or good != pushes):
        faults.append(f"{pushes} pushes, {good} of them good, do not make {sum(stored.values())} points")
    [(different,)] = _rows(server, _ROLLUPS_THAT_DIFFER)
    if different:
        faults.append(f"{different} rows of rollups are not what raw points give")
    return Audit(
        acknowledged=len(acknowledged),
        stored=len(acknowledged & stored.keys()),
        lost=len(acknowledged - stored.keys()),
        doubled=sum(stored.values()) - len(stored),
        faults=faults,
        values=stored.keys(),
    )


def command(sql_port: int, statement: str) -> None:
    with connected(with_writer(Endpoint.parse(f"http://{LOOPBACK}:{sql_port}"))) as client:
        client.command(statement)


def _rows(server: int | Endpoint, query: str) -> Any:
    endpoint = server if isinstance(server, Endpoint) else with_writer(Endpoint.parse(f"http://{LOOPBACK}:{server}"))
    with connected(endpoint) as client:
        return client.query(query).result_rows
