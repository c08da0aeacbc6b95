"""One verdict on every surface: drawn rows and telemetry, and the same level, numbers, reason and impact of job, view,
API, page, top and /metrics, which are those of references in plain Python."""

import math
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from quota_metrics.amounts import duration_text, of_limit_text, share_text
from quota_metrics.jmx.sensors import BEANS
from quota_metrics.verdict.client_signals import metrics_of
from quota_metrics.verdict.impact import HARMS, IMPACTS
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.levels import compute_levels
from tests.kit.levels_reference import ClientVerdict, client_verdicts
from tests.kit.points import TIME, points
from tests.kit.serving import Served, config_file, eventually
from tests.kit.surfaces import Client, Shown, Surfaces
from tests.kit.usage_rows import MINUTE, START, changing, insert
from tests.kit.windows_reference import Row, windows
from tests.spark_jobs.impact_reference import Felt, impact_of

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
FLEETS, FLEETS_OF_A_CLUSTER = 300, 140


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


def test_every_surface_shows_the_verdict_of_the_reference(
    spark: SparkSession, clickhouse: RunningClickHouse, served: Served
) -> None:
    rows_of, expected = drawn_fleets()
    eventually(lambda: time.time() % 60, lambda second: second < 30)  # the rows are there before their minute ends
    start_ms = time.time_ns() // 1_000_000 // MINUTE * MINUTE
    for cluster, clients in expected.items():
        insert_telemetry(clickhouse.store, cluster, clients, start_ms)
    for cluster, rows in rows_of.items():  # their third minute begins at `start_ms`
        shifted = [row._replace(at_ms=row.at_ms - START + start_ms - 2 * MINUTE) for row in rows]
        insert(clickhouse.store, shifted, cluster)
    compute_levels(clickhouse.store, *(start_ms // 1000 - 60 * ago for ago in (2, 1)))  # the memory of the third
    surfaces = Surfaces(served.http, f"{clickhouse.host}:{clickhouse.port}")
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
    assert [list(live) for live in live_causes] == [[of_job, of_job] for of_job in causes]
    assert sum(cause != "" for of_job in causes for cause in of_job.values()) >= 10
    every = [one for clients in expected.values() for one in clients.values()]
    assert len(every) >= 1000
    assert {one.verdict.level for one in every} == {"unknown", "ok", "watch", "warn", "critical", "throttled"}
    assert {impact_of(one.felt)[0] for one in every} == set(IMPACTS)
    assert {BEANS[bean][0] for bean in BEANS} >= set(KEYS)
