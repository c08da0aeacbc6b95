"""The SQL of the pages over rows of two clusters, of idle hours and of other sources; who makes a client slow."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.access import PAGES, pages_password
from exporters.model import UsageSample
from headroom.web import queries
from headroom.web.data import Data
from headroom.web.usage_chart import ARRIVING_S, RESTARTS, USAGE
from quota_metrics.verdict.thresholds import Thresholds
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import sample, write

pytestmark = pytest.mark.clickhouse

NOW_S = int(time.time())
HOUR_S = NOW_S // 3600 * 3600 - 7200  # a whole hour that is over
OTHER_ROWS = {"limit": 100, "offset": 0}
EVERYONE = {
    "cluster": "", "user": "", "client_id": "", "rule": "", "team": "", "exact": 0, "search": "", "address": "",
    "levels": [], "source": "gateway",
}  # fmt: skip


def used(client_id: str, after_s: int, **more: Any) -> UsageSample:
    return sample("east", 1000 * (HOUR_S + after_s), 60_000.0, client_id=client_id, limit=1e5, **more)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningClickHouse, ClickHouse]]:
    """A server with usage and no computed minute, and the connection that pages have."""
    rows = [
        *(used("burst", at) for at in range(600, 660)),
        *(used("steady", at) for at in range(3600)),
        *(used("sampled", at, source="jmx", interval_ms=0) for at in range(0, 3600, 30)),
    ]
    with running_clickhouse(tmp_path_factory.mktemp("queries")) as running:
        write(running.store, rows, "usage")
        password = pages_password(running.writer.password)
        user = Endpoint("http", running.host, running.writer.port, PAGES, password)
        client = ClickHouse((user,), 30.0)
        yield running, client
        client.close()


def chart(client: ClickHouse, client_id: str, **changed: Any) -> list[Row]:
    parameters: Mapping[str, Any] = {
        "cluster": "east", "quota_key": "producer_byte_rate", "user": "alice", "client_id": client_id,
        "source": "gateway", "from_s": HOUR_S, "to_s": HOUR_S + 7000, "step": 3600, "arriving_s": ARRIVING_S,
    } | changed  # fmt: skip
    return client.rows(USAGE, parameters)


def test_idle_seconds_count_in_the_mean_of_a_step(pages: tuple[RunningClickHouse, ClickHouse]) -> None:
    _, client = pages
    (burst,) = chart(client, "burst")
    assert (round(float(burst["rate"])), float(burst["peak"])) == (1000, 60_000)  # a sixtieth of the hour
    assert [round(float(row["rate"])) for row in chart(client, "steady")] == [60_000]
    assert [round(float(row["rate"])) for row in chart(client, "sampled", source="jmx")] == [60_000]


def test_ends_of_the_range_cut_the_steps(pages: tuple[RunningClickHouse, ClickHouse]) -> None:
    _, client = pages
    ends = {"from_s": HOUR_S + 540, "to_s": HOUR_S + 660 + ARRIVING_S}
    (burst,) = chart(client, "burst", **ends)
    assert round(float(burst["rate"])) == 30_000  # half of the two minutes
    (steady,) = chart(client, "steady", **ends)
    assert round(float(steady["rate"])) == 60_000


def test_chart_has_the_thresholds_in_force(pages: tuple[RunningClickHouse, ClickHouse]) -> None:
    running, client = pages
    data = Data(client, list, dict)
    asked = {"cluster": "east", "quota_key": "producer_byte_rate", "user": "alice", "client_id": "steady"}
    assert [step["share"] for step in asyncio.run(data.usage(asked))["steps"]] == [*Thresholds().steps[-2:]]
    changed = "INSERT INTO headroom.level_thresholds (watch, warn, critical, muted_share) VALUES (0.4, 0.7, 0.9, 0.01)"
    running.store.query(changed)
    steps = asyncio.run(Data(client, list, dict).usage(asked))["steps"]
    assert steps == [{"level": "warn", "share": 0.7}, {"level": "critical", "share": 0.9}]


def test_clients_of_the_week_are_found_after_idle_hours(pages: tuple[RunningClickHouse, ClickHouse]) -> None:
    _, client = pages
    asked = {"search": "s", "cluster": "", "limit": 10}
    found = client.rows(queries.SEEN, {**asked, "source": "gateway"})
    assert sorted(row["client_id"] for row in found) == ["burst", "steady"]
    assert [row["client_id"] for row in client.rows(queries.SEEN, {**asked, "source": "jmx"})] == ["sampled"]


def test_groups_are_of_one_cluster(pages: tuple[RunningClickHouse, ClickHouse]) -> None:
    running, client = pages
    running.store.query(
        """INSERT INTO headroom.headroom_minutes (window_start, computed_at, is_worst, cluster, source, quota_key, user,
               client_id, broker_id, limit, usage, level, instant_level, window_s, team)
           SELECT toStartOfMinute(now('UTC')) - 60, now64(3), 1, arrayJoin(['east', 'west']), 'gateway',
               'producer_byte_rate', 'alice', 'app', 1, 1e5, 100, 'ok', 'ok', 60, 'payments'"""
    )
    for column in queries.GROUPS.values():
        rows = client.rows(queries.GROUPED.replace("{by}", column), {**EVERYONE, **OTHER_ROWS})
        assert [(row["cluster"], row["clients"], row["all_usage"], row["groups"]) for row in rows] == [
            ("east", 1.0, 100.0, 2.0),
            ("west", 1.0, 100.0, 2.0),
        ]
    for team, clients in (("payments", 2), ("search", 0)):
        asked = {**EVERYONE, **OTHER_ROWS, "team": team}
        assert len(client.rows(queries.HEADROOM.replace("{order}", "user"), asked)) == clients


def test_suggestions_are_those_of_the_newest_run_the_default_first(
    pages: tuple[RunningClickHouse, ClickHouse],
) -> None:
    server, reader = pages
    for ago_s, kinds in ((60, ("never-used",)), (0, ("own", "too-high", "default", "own"))):
        for number, kind in enumerate(kinds):
            server.store.query(
                """INSERT INTO headroom.quota_suggestions (cluster, source, quota_key, kind, user, made_at,
                       suggested_limit)
                   SELECT 's', 'gateway', 'producer_byte_rate', {kind:String}, {number:String},
                       toDateTime64({at_s:Int64}, 3), {number:Float64} + 1""",
                {"kind": kind, "number": number, "at_s": NOW_S - ago_s},
            )
    found = reader.rows(queries.SUGGESTIONS, {"cluster": "s", "limit": 3})
    assert [(row["kind"], row["suggested_limit"]) for row in found] == [("default", 3.0), ("own", 4.0), ("own", 1.0)]
    assert {row["total"] for row in found} == {4.0}


def test_further_instances_of_a_client_are_its_restarts(pages: tuple[RunningClickHouse, ClickHouse]) -> None:
    """The first instance is none, however often it pushes; another user's and another client's are not the client's."""
    server, reader = pages
    seen = [
        # user, client id, number of the instance, seconds after the hour
        ("alice", "app", 1, 10), ("alice", "app", 1, 3000), ("alice", "app", 2, 605), ("alice", "app", 3, 610),
        ("alice", "app", 2, 2000), ("alice", "app", 4, 1805), ("bob", "app", 5, 900), ("alice", "other", 6, 900),
    ]  # fmt: skip
    for user, client_id, number, after_s in seen:
        server.store.query(
            """INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, first_seen,
                   last_seen, pushes)
               SELECT 'restarts', toUUID(concat('00000000-0000-4000-8000-00000000000', {number:String})),
                   {client_id:String}, {user:String}, toDateTime64({at_s:Int64}, 3) AS at, at, 1""",
            {"user": user, "client_id": client_id, "number": str(number), "at_s": HOUR_S + after_s},
        )
    asked = {"cluster": "restarts", "user": "alice", "client_id": "app", "step": 60}

    def found(from_s: int, to_s: int) -> list[tuple[int, float]]:
        rows = reader.rows(RESTARTS, {**asked, "from_s": HOUR_S + from_s, "to_s": HOUR_S + to_s})
        return [(row["at"] - HOUR_S, row["instances"]) for row in rows]

    assert found(0, 3600) == [(600, 2.0), (1800, 1.0)]
    assert found(602, 1804) == [(602, 2.0)]  # the range cuts its first step
    assert found(2000, 3600) == []


NEWEST_S = int(time.time()) // 60 * 60 - 60
LATENCY = "org.apache.kafka.producer.node.request.latency.max"
THROTTLED = "org.apache.kafka.producer.produce.throttle.time.max"


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """In ten minutes `heavy` runs in the last three; at another broker `always busy` runs for an hour."""
    with running_clickhouse(tmp_path_factory.mktemp("slowed")) as running:
        for client_id, during in (("heavy", 5000.0), ("victim", 100.0), ("fast", 100.0), ("throttled", 100.0)):
            used_in_minutes(running, client_id, 1, [during] * 3 + [100.0] * 7)
        used_in_minutes(running, "at another broker", 2, [10.0] * 10)
        used_in_minutes(running, "always busy", 3, [5000.0] * 60)
        used_in_minutes(running, "beside it", 3, [1.0] * 60)
        slow = {-60 * ago + 30: 900.0 if ago < 3 else 20.0 for ago in range(10)}
        for client_id in ("heavy", "victim", "throttled", "at another broker"):
            reported(running, client_id, LATENCY, slow)
        reported(running, "fast", LATENCY, {at: min(value, 30.0) for at, value in slow.items()})
        reported(running, "throttled", THROTTLED, {30: 50.0})
        # Fast requests only in minutes of which no usage is read: before the hour, and after the newest.
        reported(running, "beside it", LATENCY, {-3600: 20.0, -3541: 20.0, 65: 20.0, 130: 20.0, 30: 900.0})
        yield running


def used_in_minutes(server: RunningClickHouse, client_id: str, broker_id: int, rates: Sequence[float]) -> None:
    """In the newest minute and those before; an earlier computation of each said 0."""
    server.store.query(
        """INSERT INTO headroom.headroom_minutes (window_start, computed_at, is_worst, cluster, source, quota_key, user,
               client_id, broker_id, usage, level, instant_level, window_s)
           SELECT fromUnixTimestamp({newest_s:Int64} - 60 * (number - 1)), toDateTime64({newest_s:Int64} + computed, 3),
               1, 'busy', 'gateway', 'producer_byte_rate', 'u', {client_id:String}, {broker_id:Int32}, computed * rate,
               'ok', 'ok', 60
           FROM (SELECT number, rate, arrayJoin([0, 1]) AS computed FROM (SELECT {rates:Array(Float64)} AS every)
                 ARRAY JOIN every AS rate, arrayEnumerate(every) AS number)""",
        {"newest_s": NEWEST_S, "client_id": client_id, "broker_id": broker_id, "rates": list(rates)},
    )


def reported(server: RunningClickHouse, client_id: str, metric: str, values: dict[int, float]) -> None:
    """By seconds after the begin of the newest minute."""
    server.store.query(
        """INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, value)
           SELECT 'busy', {metric:String}, toDateTime64({newest_s:Int64} + at, 3), 'u', {client_id:String}, value
           FROM (SELECT 1) ARRAY JOIN {seconds:Array(Int64)} AS at, {values:Array(Float64)} AS value""",
        {
            "newest_s": NEWEST_S, "client_id": client_id, "metric": metric,
            "seconds": list(values), "values": list(values.values()),
        },
    )  # fmt: skip


def slowed(server: RunningClickHouse, client_id: str, cluster: str = "busy") -> Row | None:
    """As the user of the pages reads it."""
    user = Endpoint("http", server.host, server.writer.port, PAGES, pages_password(server.writer.password))
    with closing(ClickHouse((user,))) as reader:
        asked = {"cluster": cluster, "user": "u", "client_id": client_id}
        found: Row | None = asyncio.run(Data(reader, list, dict).client(asked))["slowed"]
        return found


def test_victim_of_a_client_that_is_heavy_now(slow_server: RunningClickHouse) -> None:
    assert slowed(slow_server, "victim") == {
        "slowed_by_user": "u", "slowed_by_client_id": "heavy", "slowed_at_broker_id": 1, "latency_ms": 900.0,
        "latency_before_ms": 20.0,
    }  # fmt: skip


@pytest.mark.parametrize("client_id", ["heavy", "fast", "throttled", "at another broker", "beside it"])
def test_no_victim(slow_server: RunningClickHouse, client_id: str) -> None:
    """Nor where nothing is known of a time in which the heavy client was not busy, nor in another cluster."""
    assert slowed(slow_server, client_id) is None
    assert slowed(slow_server, "victim", "east") is None
