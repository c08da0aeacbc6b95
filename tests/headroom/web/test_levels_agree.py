"""One minute, one level: SQL view, JSON API, page and `headroom top` show the same for the demo's 16 clients."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from exporters.model import UsageSample
from headroom.demo.script import CLIENTS
from telemetry.ingest.arrow_tables import usage_table
from tests.headroom.web.shown_levels import live_levels
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served

pytestmark = pytest.mark.clickhouse

CLUSTER = "demo"
SHARES = {"idle": 0.05, "warn": 0.85, "throttled": 1.0, "free": 0.5}
EXPECTED = {"idle": "ok", "warn": "warn", "throttled": "throttled", "free": "ok"}
MINUTES = 6  # around now: whichever is shown has the same rows


def rows_of(client_id: str, quota_key: str, habit: str, limit: float | None, now_s: int) -> list[UsageSample]:
    rate = SHARES[habit] * (limit or 1e5)
    muted_ms = 50 if habit == "throttled" else 0
    return [
        UsageSample(
            CLUSTER, quota_key, (now_s + second) * 1000, "ANONYMOUS", client_id, "", 1, int(rate), rate,
            float(muted_ms), 0, "gateway", "gw", 1000, limit, True, "client-id=x" if limit else "", "", client_id,
            muted_ms=muted_ms,
        )
        for second in range(-60 * MINUTES, 60 * MINUTES)
    ]  # fmt: skip


def test_levels_of_the_sixteen_clients_are_shown_alike(
    clickhouse: RunningClickHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = int(time.time())
    rows = [
        row
        for client in CLIENTS
        for row in rows_of(client.client_id, str(client.quota_key), client.habit, client.limit, now_s)
    ]
    clickhouse.store.insert("quota_usage", usage_table(rows, now_s * 1000), token="levels-agree")
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.writer.password)
    expected = {(str(client.quota_key), client.client_id): EXPECTED[client.habit] for client in CLIENTS}
    with Served(tmp_path, "--clickhouse", clickhouse.writer.url) as served:
        minute_ms = (now_s // 60 - 1) * 60_000
        shown = live_levels(f"{clickhouse.host}:{clickhouse.port}", served.http, CLUSTER, minute_ms)
    assert len(expected) == 16
    assert shown == dict.fromkeys(("view", "api", "page", "top"), expected)
