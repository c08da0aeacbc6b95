"""One verdict on every surface: drawn rows, and the same level, numbers and reason of job, view, API, page, top and
/metrics, which are those of a reference in plain Python."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from html import unescape
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from quota_metrics.jmx.sensors import BEANS
from quota_metrics.levels.definition import level_of_number
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import compute_levels
from tests.kit.levels_reference import ClientVerdict, client_verdicts
from tests.kit.serving import Served, eventually
from tests.kit.usage_rows import MINUTE, START, changing, insert
from tests.kit.windows_reference import Row, windows

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
FLEETS, FLEETS_OF_A_CLUSTER = 300, 140
Client = tuple[str, str]
Shown = dict[Client, tuple[Any, ...]]  # level, reason, numbers; surfaces without numbers leave them out

_ROW = re.compile(
    r'<span class="level \w+">(?P<level>\w+)</span></td>.*?<a href="/clients/detail\?[^"]*user=(?P<user>[^&"]*)[^"]*">'
    r'(?P<client_id>[^<]+)</a>.*?class="why">(?:<span>|<details><summary>[^<]*</summary>)(?P<reason>[^<]*)<',
    re.DOTALL,
)


def fleet(number: int) -> tuple[str, list[Row]]:
    """The cluster and three minutes of rows of one drawn fleet, all of one quota key."""
    random_ = random.Random(number)
    key = KEYS[number % len(KEYS)]
    rows = changing(random_, prefix=f"f{number}-")
    factor = random_.choice([0.02, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 1.0])
    rows = [row._replace(rate=row.rate * factor) for row in rows]
    if key not in KEYS[:2]:
        rows = [row._replace(rate=random_.choice([0.0, 0.0, row.rate / 10])) for row in rows]
    if number % 5 == 0:  # usage falls: levels are held by the minutes before
        rows = [row._replace(rate=row.rate * (0.9 - (row.at_ms - START) // MINUTE * 0.1)) for row in rows]
    if number % 7 == 0:  # muted without usage, by a throttle time of minutes before
        rows = [row._replace(throttle_ms=150_000.0 if row.at_ms < START + 2000 else 0.0) for row in rows]
    return f"agree-{number // FLEETS_OF_A_CLUSTER}", [row._replace(quota_key=key) for row in rows]


def close(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def numbers(verdict: ClientVerdict) -> tuple[Any, ...]:
    return (
        *(verdict.broker_id, verdict.limit, verdict.usage, verdict.utilization, verdict.utilization_p95),
        verdict.muted_ms,
        verdict.implied_limit,
    )


def differences(shown: Shown, expected: dict[Client, ClientVerdict]) -> list[str]:
    """A line for each client that is shown with another level, reason or number."""
    lines = [f"{client}: only in one" for client in sorted(shown.keys() ^ expected.keys())]
    for client in sorted(shown.keys() & expected.keys()):
        verdict = expected[client]
        right = (verdict.level, verdict.reason, *numbers(verdict))[: len(shown[client])]
        if not all(close(one, other) for one, other in zip(shown[client], right, strict=True)):
            lines.append(f"{client}: {shown[client]} instead of {right}")
    return lines


class Surfaces:
    """Reads the newest minute of one cluster from each surface."""

    def __init__(self, served: Served, clickhouse: RunningClickHouse) -> None:
        self._http, self._clickhouse = served.http, clickhouse

    def api(self, cluster: str) -> Shown:
        rows = self._get("/api/v1/headroom", cluster=cluster, limit="1000").json()
        return {(row["user"], row["client_id"]): _from_json(row) for row in rows}

    def top(self, cluster: str) -> Shown:
        argv = [sys.executable, "-m", "headroom", "top", "--http", self._http, "--cluster", cluster, "--output", "json"]
        out = subprocess.run(argv, capture_output=True, check=True, timeout=120, env=dict(os.environ)).stdout
        return {(row["user"], row["client_id"]): _from_json(row) for row in json.loads(out)}

    def page(self, cluster: str) -> Shown:
        found = _ROW.finditer(self._get("/", cluster=cluster, limit="1000").text)
        return {
            (unescape(row["user"]), unescape(row["client_id"])): (row["level"], unescape(row["reason"]))
            for row in found
        }

    def view(self, cluster: str, start_ms: int) -> Shown:
        return self._stored(
            "headroom_by_minute", f"window_start = toDateTime({start_ms // 1000}, 'UTC')", cluster, "muted_ms"
        )

    def job(self, cluster: str) -> Shown:
        return self._stored("quota_utilization_committed", "1", cluster, "throttled_s * 1000")

    def metrics(self, cluster: str) -> Shown:
        text = self._get("/metrics").text
        return {
            (sample.labels["user"], sample.labels["client_id"]): (level_of_number(int(sample.value)),)
            for family in text_string_to_metric_families(text)
            if family.name == "headroom_client_quota_level"
            for sample in family.samples
            if sample.labels["kafka_cluster"] == cluster
        }

    def _stored(self, table: str, condition: str, cluster: str, muted_ms: str) -> Shown:
        rows = self._clickhouse.store.query(
            f"SELECT user, client_id, toString(level), reason, broker_id, limit, usage, utilization, utilization_p95,"
            f" toFloat64({muted_ms}), implied_limit FROM headroom.{table} WHERE cluster = '{cluster}' AND {condition}"
        )
        return {(row[0], row[1]): tuple(row[2:]) for row in rows}

    def _get(self, path: str, **query: str) -> httpx.Response:
        return httpx.get(f"http://{self._http}{path}", params=query, timeout=60).raise_for_status()


def _from_json(row: dict[str, Any]) -> tuple[Any, ...]:
    """JSON has no infinity: above a limit of 0 utilisation is null."""
    names = ("broker_id", "limit", "usage", "utilization", "utilization_p95", "muted_ms", "implied_limit")
    above = {
        name: math.inf for name, rate in (("utilization", "group_usage"), ("utilization_p95", "group_p95"))
        if row["limit"] == 0 and row[rate] > 0
    }  # fmt: skip
    return (row["level"], row["reason"], *((row | above)[name] for name in names))


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """A server of their own: the newest minute is that of these rows."""
    with running_clickhouse(tmp_path_factory.mktemp("agreement")) as running:
        yield running


@pytest.fixture(scope="module")
def served(clickhouse: RunningClickHouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("serve")
    (directory / "serve.yaml").write_text("quotas: {metrics: {enabled: true, max_series: 20000}}")
    settings = ["--clickhouse", clickhouse.writer.url, "--config", str(directory / "serve.yaml")]
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.writer.password)
            running = stack.enter_context(Served(directory, *settings))
        eventually(running.ready, lambda found: found[0] == 200)
        yield running


def drawn_fleets() -> tuple[dict[str, list[Row]], dict[str, dict[Client, ClientVerdict]]]:
    """Rows of three minutes from START, and what is expected of the third minute, by cluster."""
    rows_of: dict[str, list[Row]] = {}
    expected: dict[str, dict[Client, ClientVerdict]] = {}
    for number in range(FLEETS):
        cluster, rows = fleet(number)
        found = client_verdicts(windows(rows, START, START + 3 * MINUTE, MINUTE), rows[0].quota_key)
        third = {(user, client_id): one for (user, client_id, at), one in found.items() if at == START + 2 * MINUTE}
        rows_of.setdefault(cluster, []).extend(rows)
        expected.setdefault(cluster, {}).update(third)
    return rows_of, expected


def insert_minutes(clickhouse: RunningClickHouse, rows_of: dict[str, list[Row]], start_ms: int) -> None:
    """Inserts the rows such that their third minute begins at `start_ms`."""
    for cluster, rows in rows_of.items():
        shifted = [row._replace(at_ms=row.at_ms - START + start_ms - 2 * MINUTE) for row in rows]
        insert(clickhouse.store, shifted, cluster)
    compute_levels(clickhouse.store, *(start_ms // 1000 - 60 * ago for ago in (2, 1)))  # the memory of the third


def test_every_surface_shows_the_verdict_of_the_reference(
    spark: SparkSession, clickhouse: RunningClickHouse, served: Served
) -> None:
    rows_of, expected = drawn_fleets()
    eventually(lambda: time.time() % 60, lambda second: second < 10)  # the rows are there before their minute ends
    start_ms = time.time_ns() // 1_000_000 // MINUTE * MINUTE
    insert_minutes(clickhouse, rows_of, start_ms)
    surfaces = Surfaces(served, clickhouse)
    live: dict[str, Callable[[str], Shown]] = {
        "/metrics": surfaces.metrics,
        "view": lambda cluster: surfaces.view(cluster, start_ms),
        "API": surfaces.api,
        "page": surfaces.page,
        "top": surfaces.top,
    }

    def wrong(name: str) -> list[str]:
        return [line for cluster, right in expected.items() for line in differences(live[name](cluster), right)]

    for name in live:  # when the minute has ended
        eventually(partial(wrong, name), lambda lines: not lines)
    quota_headroom.run(HeadroomOptions(clickhouse.url, TimeRange(start_ms, start_ms + MINUTE, 60)))
    for cluster, verdicts in expected.items():
        assert differences(surfaces.job(cluster), verdicts) == [], cluster
    every = [one for verdicts in expected.values() for one in verdicts.values()]
    assert len(every) >= 1000
    assert {one.level for one in every} == {"unknown", "ok", "watch", "warn", "critical", "throttled"}
    assert {BEANS[bean][0] for bean in BEANS} >= set(KEYS)
