"""One verdict on every surface: drawn rows and telemetry, and the same level, numbers, reason and impact of job, view,
API, page, top and /metrics, which are those of references in plain Python."""

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
from functools import partial
from html import unescape
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from quota_metrics.amounts import duration_text, of_limit_text, share_text
from quota_metrics.jmx.sensors import BEANS
from quota_metrics.verdict.client_signals import metrics_of
from quota_metrics.verdict.impact import HARMS, IMPACTS
from quota_metrics.verdict.thresholds import LEVELS
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.levels import compute_levels
from tests.kit.levels_reference import ClientVerdict, client_verdicts
from tests.kit.points import TIME, points
from tests.kit.serving import Served, config_file, eventually
from tests.kit.usage_rows import MINUTE, START, changing, insert
from tests.kit.windows_reference import Row, windows
from tests.spark_jobs.impact_reference import Felt, impact_of

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
FLEETS, FLEETS_OF_A_CLUSTER = 300, 140
METRICS = (
    *("headroom_client_quota_level", "headroom_client_impact", "kafka_client_quota_window_utilization_ratiomean"),
    *("kafka_client_quota_window_utilization_ratiop95", "kafka_client_quota_window_muted_ratio"),
)
Client = tuple[str, str]
_Told = tuple[str, str, str]  # user, client id, quota key
Causes = dict[_Told, str]
Shown = dict[Client, tuple[Any, ...]]  # level, reason, impact and its reason, numbers; not all on some surfaces


class Judged(NamedTuple):
    """What every surface says of a client."""

    verdict: ClientVerdict
    felt: Felt

    @property
    def whole(self) -> tuple[Any, ...]:
        return self.verdict.level, self.verdict.reason, *impact_of(self.felt), *numbers(self.verdict)

    @property
    def on_the_page(self) -> tuple[Any, ...]:
        """Harm only, and numbers as they are written. JSON has no infinity: above a limit of 0 there is no share."""
        impact, verdict = impact_of(self.felt), self.verdict
        share = None if verdict.utilization == math.inf else verdict.utilization
        return (
            *(verdict.level, verdict.reason, *(impact if impact[0] in HARMS else ("", ""))),
            *(written(share_text, share), self._rates, self._is_implied),
            written(duration_text, verdict.muted_ms or None),
        )

    @property
    def _is_implied(self) -> bool:
        return self.verdict.limit is None and self.verdict.implied_limit is not None

    @property
    def _rates(self) -> frozenset[str]:
        limit = self.verdict.implied_limit if self._is_implied else self.verdict.limit
        return frozenset(
            of_limit_text(usage, most, self.felt.quota_key)
            for usage in near(self.verdict.usage)
            for most in (near(limit) if limit is not None else [None])
        )

    @property
    def on_metrics(self) -> tuple[Any, ...]:
        verdict = self.verdict
        numbers = (verdict.utilization, verdict.utilization_p95, verdict.muted_ms / MINUTE)
        return verdict.level, IMPACTS.index(impact_of(self.felt)[0]) - 1, *numbers


def written(text: Callable[[float | None], str], number: float | None) -> frozenset[str]:
    """A number as pages write it, whichever way its last bit falls."""
    return frozenset(text(each) for each in (near(number) if number is not None else [None]))


def near(number: float) -> list[float]:
    return [number * (1 + off) for off in (-1e-9, 0, 1e-9)]


_ROW = re.compile(
    r'<span class="level \w+">(?P<level>\w+)</span></td>.*?<a href="/clients/detail\?[^"]*user=(?P<user>[^&"]*)[^"]*">'
    r'(?P<client_id>[^<]+)</a>.*?class="use">.*?<span class="number">(?P<share>[^<]*)</span></td>'
    r'\s*<td class="number">(?P<rates>[^<]*?)(?P<implied> <small>implied</small>)?</td>'
    r'\s*<td data-label="Muted" class="number">(?P<muted>[^<]*)</td>'
    r'.*?class="why">(?:<span>|<details><summary>[^<]*</summary>)(?P<reason>[^<]*)<'
    r'.*?(?:class="felt" title="(?P<felt>[^"]*)">client (?P<impact>[\w-]+)</small>)?</td>',
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
    if isinstance(other, frozenset):
        return one in other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return one == other


def numbers(verdict: ClientVerdict) -> tuple[Any, ...]:
    return (
        *(verdict.broker_id, verdict.limit, verdict.usage, verdict.utilization, verdict.utilization_p95),
        verdict.muted_ms,
        verdict.implied_limit,
    )


def differences(shown: Shown, expected: Shown) -> list[str]:
    """A line for each client that is shown with another level, reason, impact or number."""
    lines = [f"{client}: only in one" for client in sorted(shown.keys() ^ expected.keys())]
    both = [(client, shown[client], expected[client]) for client in sorted(shown.keys() & expected.keys())]
    wrong = (one for one in both if not all(close(*pair) for pair in zip(*one[1:], strict=True)))
    return lines + [f"{client}: {one} instead of {other}" for client, one, other in wrong]


def told_otherwise(one: Causes, other: Causes) -> dict[_Told, tuple[str | None, str | None]]:
    """The causes that differ."""
    return {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


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
            (unescape(row["user"]), unescape(row["client_id"])): (
                *(row["level"], unescape(row["reason"]), row["impact"] or "", unescape(row["felt"] or "")),
                *(row["share"], row["rates"], row["implied"] is not None, row["muted"]),
            )
            for row in found
        }

    def view(self, cluster: str, start_ms: int) -> Shown:
        return self._stored(
            "headroom_by_minute", f"window_start = toDateTime({start_ms // 1000}, 'UTC')", cluster, "muted_ms"
        )

    def job(self, cluster: str) -> Shown:
        return self._stored("quota_utilization_committed", "1", cluster, "throttled_s * 1000")

    def metrics(self, cluster: str) -> Shown:
        series: dict[str, dict[Client, float]] = {}
        for family in text_string_to_metric_families(self._get("/metrics").text):
            for sample in family.samples:
                if sample.labels.get("kafka_cluster") == cluster:
                    name = sample.name + sample.labels.get("statistic", "")
                    series.setdefault(name, {})[sample.labels["user"], sample.labels["client_id"]] = sample.value
        level, *others = (series.get(name, {}) for name in METRICS)
        return {
            client: (LEVELS[int(number) + 1], *(other.get(client) for other in others))
            for client, number in level.items()
        }

    def _stored(self, table: str, condition: str, cluster: str, muted_ms: str) -> Shown:
        rows = self._clickhouse.store.query(
            f"SELECT user, client_id, toString(level), reason, impact, impact_reason, broker_id, limit, usage,"
            f" utilization, utilization_p95, toFloat64({muted_ms}), implied_limit FROM headroom.{table}"
            f" WHERE cluster = '{cluster}' AND {condition}"
        )
        return {(row[0], row[1]): tuple(row[2:]) for row in rows}

    def live_causes(self, cluster: str) -> list[Causes]:
        """What API and view tell."""
        api = self._get("/api/v1/headroom", cluster=cluster, limit="1000").json()
        told = {(row["user"], row["client_id"], row["quota_key"]): row["cause"] for row in api}
        return [told, self._causes("headroom_now", f"cluster = '{cluster}'")]

    def job_causes(self, cluster: str, start_ms: int) -> Causes:
        of_minute = f"cluster = '{cluster}' AND window_start = toDateTime({start_ms // 1000}, 'UTC')"
        return self._causes("quota_utilization_committed", of_minute)

    def _causes(self, table: str, condition: str) -> Causes:
        asked = f"SELECT user, client_id, quota_key, cause FROM headroom.{table} WHERE {condition}"
        return {(row[0], row[1], row[2]): row[3] for row in self._clickhouse.store.query(asked)}

    def _get(self, path: str, **query: str) -> httpx.Response:
        return httpx.get(f"http://{self._http}{path}", params=query, timeout=60).raise_for_status()


def _from_json(row: dict[str, Any]) -> tuple[Any, ...]:
    """JSON has no infinity: above a limit of 0 utilisation is null."""
    names = ("broker_id", "limit", "usage", "utilization", "utilization_p95", "muted_ms", "implied_limit")
    above = {
        name: math.inf for name, rate in (("utilization", "group_usage"), ("utilization_p95", "group_p95"))
        if row["limit"] == 0 and row[rate] > 0
    }  # fmt: skip
    said = (row["level"], row["reason"], row["impact"], row["impact_reason"])
    return (*said, *((row | above)[name] for name in names))


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """A server of their own: the newest minute is that of these rows."""
    with running_clickhouse(tmp_path_factory.mktemp("agreement")) as running:
        yield running


@pytest.fixture(scope="module")
def served(clickhouse: RunningClickHouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("serve")
    # Whole minutes only, which the job and the references judge as well.
    quotas = {"metrics": {"enabled": True, "max_series": 20_000}}
    config = config_file(directory, quotas=quotas, levels={"every_ms": 3_600_000})
    with Served(directory, *config, environment=clickhouse.environment) as running:
        eventually(running.ready, lambda found: found[0] == 200)
        yield running


def felt(random_: random.Random, quota_key: str, verdict: ClientVerdict) -> Felt:
    """What the client of a verdict reports, of one instance; nothing, some or all of it."""
    drawn = {
        "software_name": random_.choice(["apache-kafka-java", "librdkafka", "franz-go"]),
        "produce_throttle_ms": random_.choice([0.0, 900.0, 1150.0]),
        "fetch_throttle_ms": random_.choice([0.0, 20.0]),
        "request_latency_ms": random_.choice([3.0, 1000.0]),
        "queue_time_ms": random_.choice([0.0, 500.0, 60_000.0, 150_000.0, 300_000.0]),
        "rebalances": random_.choice([0.0, 2.0]),
        "records_lag": random_.choice([10.0, 11_000.0]),
        "records_failed": random_.choice([0.0, 0.0, 7.0]),
        "records_refused": random_.choice([0.0, 0.0, 2.0]),
        "records_retried": random_.choice([0.0, 3.0]),
    }
    share = random_.choice([0.0, 0.3, 1.0])
    kept: dict[str, Any] = {name: value for name, value in drawn.items() if random_.random() < share}
    if kept and "records_lag" in kept:
        kept["lag_per_min"] = random_.choice([0.0, 2000.0])
    return Felt(quota_key=quota_key, muted_ms=verdict.muted_ms, **({"software_name": ""} | kept))


def reported(client: Felt, start_ms: int) -> Iterator[tuple[str, int, float]]:
    """Metric, time and value of each point of the minute from `start_ms` on, and the lag of two minutes before."""
    for name in Felt._fields:
        value = getattr(client, name) if metrics_of(name) else None
        if value is None:
            continue
        for ago in range(3 if name == "records_lag" else 1):
            yield metrics_of(name)[0], start_ms + 5000 - MINUTE * ago, value - ago * (client.lag_per_min or 0.0)


def insert_telemetry(store: QueriedStore, cluster: str, clients: dict[Client, Judged], start_ms: int) -> None:
    pushed = [(*client, *point) for client, one in clients.items() for point in reported(one.felt, start_ms)]
    users, client_ids, metrics, times, values = map(list, zip(*pushed, strict=True))
    columns: dict[str, Any] = {"principal": users, "client_id": client_ids, "metric": metrics, "value": values}
    table = points(cluster, len(pushed), ts=pa.array(times, TIME), **columns)
    store.insert("points", table, token=f"{cluster}-felt")
    software = {client: one.felt.software_name for client, one in clients.items() if one.felt.software_name}
    store.query(
        "INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,"
        " software_version, first_seen, last_seen, pushes, points) SELECT {cluster:String}, generateUUIDv4(one.1),"
        " one.1, one.2, one.3, '1', now(), now(), 1, 1"
        " FROM (SELECT arrayJoin({seen:Array(Tuple(String, String, String))}) AS one)",
        {"cluster": cluster, "seen": [(client_id, user, name) for (user, client_id), name in software.items()]},
    )


def drawn_fleets() -> tuple[dict[str, list[Row]], dict[str, dict[Client, Judged]]]:
    """Rows of three minutes from START, and what is expected of the third minute, by cluster."""
    rows_of: dict[str, list[Row]] = {}
    expected: dict[str, dict[Client, Judged]] = {}
    random_ = random.Random(11)
    for number in range(FLEETS):
        cluster, rows = fleet(number)
        found = client_verdicts(windows(rows, START, START + 3 * MINUTE, MINUTE), rows[0].quota_key)
        third = {
            (user, client_id): Judged(one, felt(random_, rows[0].quota_key, one))
            for (user, client_id, at), one in found.items()
            if at == START + 2 * MINUTE
        }
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
    for cluster, clients in expected.items():
        insert_telemetry(clickhouse.store, cluster, clients, start_ms)
    insert_minutes(clickhouse, rows_of, start_ms)
    surfaces = Surfaces(served, clickhouse)
    live: dict[str, tuple[Callable[[str], Shown], Callable[[Judged], tuple[Any, ...]]]] = {
        "/metrics": (surfaces.metrics, lambda right: right.on_metrics),
        "view": (lambda cluster: surfaces.view(cluster, start_ms), lambda right: right.whole),
        "API": (surfaces.api, lambda right: right.whole),
        "page": (surfaces.page, lambda right: right.on_the_page),
        "top": (surfaces.top, lambda right: right.whole),
    }

    def wrong(name: str) -> list[str]:
        read, said = live[name]
        return [
            line
            for cluster, clients in expected.items()
            for line in differences(read(cluster), {client: said(right) for client, right in clients.items()})
        ]

    for name in live:  # when the minute has ended
        eventually(partial(wrong, name), lambda lines: not lines)
    live_causes = [surfaces.live_causes(cluster) for cluster in expected]  # before another minute is the newest
    quota_headroom.run(HeadroomOptions(clickhouse.url, TimeRange(start_ms, start_ms + MINUTE, 60)))
    for cluster, clients in expected.items():
        whole = {client: right.whole for client, right in clients.items()}
        assert differences(surfaces.job(cluster), whole) == [], cluster
    causes = [surfaces.job_causes(cluster, start_ms) for cluster in expected]
    pairs = zip(live_causes, causes, strict=True)
    assert [told_otherwise(told, of_job) for live, of_job in pairs for told in live] == [{}, {}] * len(causes)
    assert sum(cause != "" for of_job in causes for cause in of_job.values()) >= 10
    every = [one for clients in expected.values() for one in clients.values()]
    assert len(every) >= 1000
    assert {one.verdict.level for one in every} == {"unknown", "ok", "watch", "warn", "critical", "throttled"}
    assert {impact_of(one.felt)[0] for one in every} == set(IMPACTS)
    assert {BEANS[bean][0] for bean in BEANS} >= set(KEYS)
