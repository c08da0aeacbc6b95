"""Views about quotas' history and about client instances."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from exporters.model import QuotaLimit
from telemetry.ingest.arrow_tables import limits_table
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.levels import PRODUCER, now_ms, sample, write

pytestmark = pytest.mark.clickhouse


def test_quota_change_recorded_by_two_gateways_is_listed_once(clickhouse: RunningClickHouse) -> None:
    rows = [(10, 5.0), (11, 5.0), (20, 6.0), (21, 6.0), (30, None), (31, None), (40, 5.0)]
    limits = [QuotaLimit("twice", "alice", "<default>", "", PRODUCER, ms, value) for ms, value in rows]
    clickhouse.store.insert("quota_limits", limits_table(limits, now_ms()), token="twice")
    changes = clickhouse.store.query(
        "SELECT entity, toUnixTimestamp64Milli(changed_at), before, after FROM headroom.quota_changes"
        " WHERE cluster = 'twice' ORDER BY changed_at"
    )
    assert changes == [
        ("user=alice, client-id=<default>", ms, before, after)
        for ms, before, after in ((10, None, 5.0), (20, 5.0, 6.0), (30, 6.0, None), (40, None, 5.0))
    ]


def instance(client_id: str, first_ago_s: int, last_ago_s: int, pushes: int, **more: Any) -> dict[str, Any]:
    base = {
        "cluster": "silent", "client_id": client_id, "principal": "alice", "software_name": "librdkafka",
        "software_version": "2.5.0", "first_seen": now_ms() - first_ago_s * 1000,
        "last_seen": now_ms() - last_ago_s * 1000,
        "terminated": 0, "pushes": pushes,
    }  # fmt: skip
    return base | more


def test_silent_clients_and_bad_versions_are_listed(clickhouse: RunningClickHouse) -> None:
    store = clickhouse.store
    rows = [
        instance("silent", 4000, 400, 37),  # each 100 s
        instance("pushes", 4000, 90, 40),
        instance("ended", 4000, 400, 37, terminated=1),
        instance("once", 4000, 400, 1),
        instance("muted", 4000, 400, 37),
    ]
    table = pa.Table.from_pylist(rows)
    for name in ("first_seen", "last_seen"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(pa.timestamp("ms", tz="UTC")))
    store.insert("client_instances", table, token="silent")
    second = now_ms() // 1000 * 1000
    write(store, [sample("silent", second, 0.0, client_id="muted", throttle_ms=60_000.0)], "muted")
    silent = store.query(
        "SELECT client_id, round(usual_s), silent_s > 390 FROM headroom.silent_clients WHERE cluster = 'silent'"
    )
    assert silent == [("silent", 100.0, 1)]
    bad = store.query("SELECT software_version, instances FROM headroom.bad_client_versions WHERE cluster = 'silent'")
    assert bad == [("2.5.0", 4)]  # instances seen within 15 minutes and not terminated: silent, pushes, once, muted
