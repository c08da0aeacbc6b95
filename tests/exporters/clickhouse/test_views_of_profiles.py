"""Views say the same to dashboards and people whose profile is another one, on a server in another zone, and so do the
queries of pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

import orjson
import pytest
from clickhouse_connect.driver.client import Client

from exporters.clickhouse.client import ClickHouse
from headroom.web.data import Data
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, connected
from tests.kit.levels import compute_levels, now_ms, sample, write
from tests.kit.platforms.profiles import ForeignServer, Profile, foreign_server

pytestmark = pytest.mark.clickhouse

# What a connection of a dashboard does not set. Settings of formats are the dashboard's own.
OTHER: dict[str, str | int] = {
    "aggregate_functions_null_for_empty": 1,
    "group_by_use_nulls": 1,
    "join_use_nulls": 1,
    "prefer_column_name_to_alias": 1,
    "session_timezone": "Asia/Kolkata",
    "transform_null_in": 1,
}
PROFILES = {
    "plain": Profile(),
    "other": Profile(OTHER),
    "fixed": Profile(OTHER, frozenset(OTHER)),
    "read_only": Profile({**OTHER, "readonly": 1}),
    "earlier": Profile({"compatibility": "24.1", "output_format_json_quote_64bit_integers": 0}),
    "planner": Profile({"allow_experimental_analyzer": 0}),
    "joins": Profile({"join_algorithm": "full_sorting_merge", "single_join_prefer_left_table": 0}),
    "pages": Profile({**OTHER, "compatibility": "24.1", "max_result_rows": 1, "date_time_output_format": "iso"}),
}
# What they say depends on the moment at which they are asked.
OF_NOW = {"throttled_now", "silent_clients", "gateway_share"}
_RUN = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
_HOUR = "toStartOfHour(now('UTC')) - INTERVAL 1 HOUR"
_INSERTS = {
    "client_instances": "'c' AS cluster, generateUUIDv4() AS client_instance_id, 'app' AS client_id,"
    " 'alice' AS principal, 'kgo' AS software_name, '1.20.4' AS software_version, now() - 600 AS first_seen,"
    " now() AS last_seen, 9 AS pushes FROM numbers(20)",
    "cluster_facts": "'c' AS cluster, number % 3 AS broker_id, now() - number AS valid_from, '4.3' AS release,"
    " map('a', 'b') AS configs FROM numbers(9)",
    "topic_samples": "'c' AS cluster, toStartOfMinute(now()) - number AS ts, 1000 AS interval_ms, 'alice' AS user,"
    " 'app' AS client_id, 't' AS topic, 'in' AS direction, 100 AS sampled_bytes, 2 AS sampled_frames, 0.1 AS sample"
    " FROM numbers(180)",
    "quota_limits": "'c' AS cluster, 'alice' AS user, 'producer_byte_rate' AS quota_key,"
    f" {_HOUR} + number AS valid_from, if(number = 2, NULL, 100 + intDiv(number, 2)) AS value FROM numbers(5)",
    "quota_utilization_windows": f"'c' AS cluster, 'gateway' AS source, 60 AS window_s, {_HOUR} AS window_start,"
    f" 1 AS complete, 1 AS rows, toUUID('{_RUN}') AS run_id, 7 AS run_version",
    "quota_utilization": f"'c' AS cluster, 'gateway' AS source, 'producer_byte_rate' AS quota_key, 60 AS window_s,"
    f" {_HOUR} AS window_start, 'alice' AS user, 'app' AS client_id, toUUID('{_RUN}') AS run_id, 7 AS run_version",
    "quota_suggestions": f"'c' AS cluster, 'gateway' AS source, {_HOUR} AS made_at, 'alice' AS user",
    "points": f"'c' AS cluster, 'm' AS metric, {_HOUR} + number AS ts, 'alice' AS principal, 'app' AS client_id,"
    " number % 3 AS series_id, number AS value FROM numbers(50)",
    "series": "'c' AS cluster, 'm' AS metric, number AS series_id, 'gauge' AS kind, 'delta' AS temporality,"
    " map('a', 'b') AS attributes, now64(3) AS last_seen FROM numbers(2)",
    "points_1h": f"'c' AS cluster, 'm' AS metric, {_HOUR} AS bucket, 'alice' AS principal, 1 AS series_id, 5 AS points",
}


def fill(store: QueriedStore, client: Client) -> int:
    """`client`: of the same database. Returns the start of the newest minute, in seconds since the epoch."""
    start_s = now_ms() // 60_000 * 60 - 120
    of_app: dict[str, Any] = {"limit": 1000.0}
    seconds = range(120)
    rows = [sample("c", (start_s + s + 1) * 1000, 990.0, throttle_ms=50.0 * (s % 3), **of_app) for s in seconds]
    rows += [sample("c", (start_s + s + 1) * 1000, 100.0, client_id="b", limit=None) for s in seconds]
    write(store, rows, "usage")
    for table, select in _INSERTS.items():
        names = ", ".join(re.findall(r" AS (\w+)", select))
        client.command(f"INSERT INTO {table} ({names}) SELECT {select}")
    compute_levels(store, start_s, start_s + 60)
    return start_s + 60


def views() -> list[str]:
    """The names of all views."""
    schema = files("deploy") / "clickhouse" / "schema"
    texts = [file.read_text(encoding="utf-8") for file in sorted(schema.iterdir(), key=lambda file: file.name)]
    return re.findall(r"CREATE VIEW IF NOT EXISTS \{\{database\}\}\.(\w+)", "\n".join(texts))


class Filled(NamedTuple):
    server: ForeignServer
    newest_s: int


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    directory = tmp_path_factory.mktemp("views") / "server"
    with foreign_server(directory, PROFILES, {"timezone": "Asia/Kolkata"}) as server:
        store = QueriedStore(server.endpoint("other"))
        store.migrate(SCHEMA_VALUES)
        with connected(server.endpoint("plain")) as client:
            newest_s = fill(store, client)
        yield Filled(server, newest_s)


def read(server: ForeignServer, user: str, view: str) -> tuple[list[Any], list[Any]]:
    """Columns with their types, and rows, over a connection that sets nothing."""
    with connected(server.endpoint(user)) as client:
        answer = orjson.loads(client.raw_query(f"SELECT * FROM {view} FORMAT JSONCompact"))
    return answer["meta"], sorted(answer["data"], key=str)


@pytest.mark.parametrize("user", ["other", "fixed", "read_only", "earlier", "planner", "joins"])
def test_views_say_the_same_under_any_profile(filled: Filled, user: str) -> None:
    empty = []
    for view in views():
        columns, rows = read(filled.server, "plain", view)
        others, other_rows = read(filled.server, user, view)
        assert others == columns, view
        if view not in OF_NOW:
            assert other_rows == rows, view
            empty += [view] if not rows else []
    assert not empty


def test_pages_say_the_same_under_any_profile(filled: Filled) -> None:
    async def said(user: str) -> list[Any]:
        data = Data(ClickHouse((filled.server.endpoint(user),)), list, dict)
        near = await data.headroom({})
        answers = [near, await data.topics({}), await data.quota_changes({}), await data.summary({})]
        return [*answers, await data.client({"cluster": "c", "user": "alice", "client_id": "app"})]

    plain = asyncio.run(said("plain"))
    assert asyncio.run(said("pages")) == plain
    near, topics, *_ = plain
    assert {row["client_id"]: row["level"] for row in near}["app"] in ("critical", "throttled")
    with connected(filled.server.endpoint("plain")) as client:
        text = client.command(f"SELECT toString(toDateTime({filled.newest_s}, 'UTC'))")
    assert near[0]["window_start"] == text
    assert topics[0]["window_start"].endswith(":00")
    assert abs(int(topics[0]["window_start"][14:16]) - int(str(text)[14:16])) in (*range(10), *range(50, 60))
