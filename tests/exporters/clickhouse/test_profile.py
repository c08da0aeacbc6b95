"""Statements mean the same under profiles of other people, or the connection is refused by the setting's name; views
say the same to dashboards and people, whose connections set nothing."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import ANY_DATABASE
from exporters.clickhouse.errors import StoreSettingError
from exporters.clickhouse.profile import ASSUMED, LIMITS, limits_to_send, low_limits, refuse_fixed, settings_to_send
from exporters.clickhouse.store import TransientWriteError
from headroom.web.data import Data
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, connected
from tests.kit.levels import compute_levels, now_ms, sample, write
from tests.kit.platforms.profiles import ForeignServer, Profile, foreign_server

HOSTILE: dict[str, str | int] = {
    "compatibility": "23.8",
    "join_use_nulls": 1,
    "aggregate_functions_null_for_empty": 1,
    "transform_null_in": 1,
    "data_type_default_nullable": 1,
    "insert_null_as_default": 0,
    "prefer_column_name_to_alias": 1,
    "final": 1,
    "use_query_cache": 1,
    "limit": 2,
    "offset": 1,
    "max_result_rows": 3,
    "result_overflow_mode": "break",
    "max_columns_to_read": 5,
    "max_rows_to_group_by": 1,
    "group_by_overflow_mode": "any",
    "max_rows_in_set": 1,
    "set_overflow_mode": "break",
    "max_rows_to_sort": 1,
    "max_rows_in_join": 1,
    "min_execution_speed": 1_000_000_000,
    "timeout_before_checking_execution_speed": 0,
    "force_optimize_projection": 1,
    "async_insert": 1,
    "wait_for_async_insert": 0,
    "insert_deduplicate": 0,
    "output_format_json_quote_64bit_integers": 1,
    "output_format_json_array_of_rows": 1,
    "output_format_json_quote_denormals": 1,
    "output_format_arrow_string_as_string": 0,
    "date_time_output_format": "iso",
    "session_timezone": "Asia/Kolkata",
}
# What a connection of a dashboard does not set. Settings of formats are the dashboard's own.
OTHER: dict[str, str | int] = {
    "aggregate_functions_null_for_empty": 1,
    "group_by_use_nulls": 1,
    "join_use_nulls": 1,
    "prefer_column_name_to_alias": 1,
    "session_timezone": "Asia/Kolkata",
    "transform_null_in": 1,
}
EQUAL = ("max_threads", "max_execution_time", "log_comment", "join_use_nulls")
PROFILES = {
    "plain": Profile(),
    "hostile": Profile(HOSTILE),
    "equal": Profile({"session_timezone": "UTC"}, frozenset(EQUAL)),
    "bounded": Profile(
        {"max_result_rows": 1000},
        bounds={"max_result_rows": {"min": 1, "max": 100_000}, "max_execution_time": {"min": 1, "max": 30}},
    ),
    "few_rows": Profile({"max_result_rows": 1000}, frozenset({"max_result_rows"})),
    "zone": Profile({}, frozenset({"session_timezone"})),
    "tokens": Profile({"session_timezone": "UTC"}, frozenset({"insert_deduplication_token"})),
    "reader": Profile({"readonly": 1, "session_timezone": "UTC"}),
    "other": Profile(OTHER),
    "fixed": Profile(OTHER, frozenset(OTHER)),
    "read_only": Profile({**OTHER, "readonly": 1}),
    "earlier": Profile({"compatibility": "24.1", "output_format_json_quote_64bit_integers": 0}),
    "planner": Profile({"allow_experimental_analyzer": 0}),
    "joins": Profile({"join_algorithm": "full_sorting_merge", "single_join_prefer_left_table": 0}),
    "pages": Profile({**OTHER, "compatibility": "24.1", "max_result_rows": 1, "date_time_output_format": "iso"}),
}


class Setting(NamedTuple):
    value: str
    readonly: int = 0


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    directory: Path = tmp_path_factory.mktemp("foreign")
    with foreign_server(directory / "server", PROFILES, {"timezone": "Asia/Kolkata"}) as server:
        yield server


def as_user(server: ForeignServer, profile: str) -> ClickHouse:
    bounding = {"max_threads": "1", "max_execution_time": "50"}
    return ClickHouse((server.endpoint(profile, ANY_DATABASE),), settings=bounding)


@pytest.mark.clickhouse
def test_hostile_profile_changes_no_row_and_no_insert(foreign: ForeignServer) -> None:
    store = QueriedStore(foreign.endpoint("hostile", "hostile"))
    store.migrate(SCHEMA_VALUES)
    store.check()
    store.check_reading(SCHEMA_VALUES)
    clickhouse = ClickHouse((foreign.endpoint("hostile", "hostile"),))
    rows = pa.table({"token": [f"{number}" for number in range(20)]})
    for _ in range(2):
        clickhouse.insert("write_checks", rows, token="once")
    where = "FROM write_checks WHERE length(token) < 3"
    read = clickhouse.rows(
        f"SELECT count() AS number, toUInt64(max(toUInt8(token))) AS most, anyOrNull(nan) AS none {where}"
    )
    assert read == [{"number": 20, "most": 19, "none": None}]
    assert len(clickhouse.rows(f"SELECT token {where}")) == 20
    assert clickhouse.table(f"SELECT token {where}").schema.types == [pa.string()]
    (zone,) = clickhouse.rows("SELECT toString(toDateTime(0)) AS epoch, timezone() AS zone, now() - now('UTC') AS off")
    assert zone == {"epoch": "1970-01-01 00:00:00", "zone": "UTC", "off": 0}


@pytest.mark.clickhouse
@pytest.mark.parametrize("profile", ["plain", "equal", "bounded", "reader"])
def test_profile_that_leaves_the_meaning_alone_is_accepted(foreign: ForeignServer, profile: str) -> None:
    assert as_user(foreign, profile).rows("SELECT count() AS rows FROM numbers(5000)") == [{"rows": 5000}]
    assert len(as_user(foreign, profile).rows("SELECT number FROM numbers(5000)")) == 5000


@pytest.mark.clickhouse
@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("zone", r"profile of user 'zone' fixes .*: session_timezone = 'Asia/Kolkata' \(needed: 'UTC'\)"),
        ("few_rows", r"max_result_rows .*profile of user 'few_rows'"),
    ],
)
def test_profile_that_fixes_another_meaning_is_refused_by_name(
    foreign: ForeignServer, profile: str, reason: str
) -> None:
    with pytest.raises(StoreSettingError, match=reason):
        as_user(foreign, profile).rows("SELECT 1 AS one")
    with pytest.raises(TransientWriteError, match=reason):
        QueriedStore(foreign.endpoint(profile, "refused")).migrate(SCHEMA_VALUES)


@pytest.mark.clickhouse
def test_writer_that_may_set_no_token_is_refused_by_name(foreign: ForeignServer) -> None:
    rows = pa.table({"token": ["a"]})
    with pytest.raises(StoreSettingError, match=r"profile of user 'tokens' fixes .* insert_deduplication_token"):
        as_user(foreign, "tokens").insert("any", rows, token="x")


def test_what_a_release_does_not_have_and_what_is_equal_is_not_sent() -> None:
    server = {name: Setting(value) for name, value in ASSUMED.items() if name != "use_variant_as_common_type"}
    assert settings_to_send(server, "me") == {}
    same = {**server, "join_algorithm": Setting("parallel_hash,ie_join"), "session_timezone": Setting("Etc/UTC")}
    assert settings_to_send({**same, "deduplicate_insert": Setting("backward_compatible_choice", 1)}, "me") == {}
    other = {**server, "join_algorithm": Setting("partial_merge"), "compatibility": Setting("24.1")}
    assert settings_to_send(other, "me") == {"join_algorithm": "default", "compatibility": ""}
    with pytest.raises(StoreSettingError, match=r"deduplicate_insert = 'disable' \(needed: 'enable'\)"):
        settings_to_send({"deduplicate_insert": Setting("disable", 1)}, "me")


def test_a_profile_that_filters_rows_or_reads_another_language_is_set_right() -> None:
    server = {
        "additional_table_filters": Setting("{'headroom.points':'1 = 0'}"),
        "additional_result_filter": Setting("cluster = 'a'"),
        "dialect": Setting("kusto"),
    }
    sent = {"additional_table_filters": "{}", "additional_result_filter": "", "dialect": "clickhouse"}
    assert settings_to_send(server, "me") == sent
    fixed = {"additional_table_filters": Setting("{'t':'1 = 0'}", 1)}
    with pytest.raises(StoreSettingError, match=r"additional_table_filters = .* \(needed: '{}'\)"):
        settings_to_send(fixed, "me")


def test_zone_of_the_server_counts_where_the_profile_has_none() -> None:
    server = {"session_timezone": Setting("")}
    assert settings_to_send(server, "me", "UTC") == {}
    assert settings_to_send(server, "me", "Europe/Paris") == {"session_timezone": "UTC"}
    with pytest.raises(StoreSettingError, match=r"session_timezone = 'Europe/Paris' \(needed: 'UTC'\)"):
        settings_to_send({"session_timezone": Setting("", readonly=1)}, "me", "Europe/Paris")


def test_all_fixed_settings_are_named_at_once() -> None:
    server = {"final": Setting("1", 1), "limit": Setting("10", 1), "extremes": Setting("0", 1)}
    with pytest.raises(
        StoreSettingError, match=r"user 'default' .*: final = 1 \(needed: 0\), limit = 10 \(needed: 0\);"
    ):
        settings_to_send(server, "")
    refuse_fixed(server, {"extremes": "0", "unheard_of": "1"}, "me")


@pytest.mark.parametrize(
    ("bounds", "sent"),
    [
        ((None, None), {"max_result_rows": "0"}),
        ((None, 5000), {"max_result_rows": "0"}),
        ((1, 5000), {"max_result_rows": "5000"}),
        ((1, 1000), {}),
        ((1, None), {"max_result_rows": str(1 << 62)}),
    ],
)
def test_limits_are_raised_as_far_as_the_profile_lets_them(
    bounds: tuple[int | None, int | None], sent: dict[str, str]
) -> None:
    server = {"max_result_rows": Setting("1000"), "max_query_size": Setting("500000"), "max_ast_depth": Setting("5", 1)}
    assert low_limits(server) == ["max_result_rows"]
    assert limits_to_send(server, {"max_result_rows": bounds}) == sent
    assert all(name.startswith("max_") for name in LIMITS)


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


@pytest.fixture(scope="module")
def newest_s(foreign: ForeignServer) -> int:
    """The start of the newest minute of the rows that all views have."""
    store = QueriedStore(foreign.endpoint("other"))
    store.migrate(SCHEMA_VALUES)
    with connected(foreign.endpoint("plain")) as client:
        return fill(store, client)


def read(server: ForeignServer, user: str, view: str) -> tuple[list[Any], list[Any]]:
    """Columns with their types, and rows, over a connection that sets nothing."""
    with connected(server.endpoint(user)) as client:
        answer = orjson.loads(client.raw_query(f"SELECT * FROM {view} FORMAT JSONCompact"))
    return answer["meta"], sorted(answer["data"], key=str)


@pytest.mark.clickhouse
@pytest.mark.usefixtures("newest_s")
@pytest.mark.parametrize("user", ["other", "fixed", "read_only", "earlier", "planner", "joins"])
def test_views_say_the_same_under_any_profile(foreign: ForeignServer, user: str) -> None:
    empty = []
    with connected(foreign.endpoint("plain")) as client:
        views = client.query(
            "SELECT name FROM system.tables WHERE database = 'headroom' AND engine = 'View'"
        ).result_rows
    assert len(views) > 10
    for (view,) in views:
        columns, rows = read(foreign, "plain", view)
        others, other_rows = read(foreign, user, view)
        assert others == columns, view
        if view not in OF_NOW:
            assert other_rows == rows, view
            empty += [view] if not rows else []
    assert not empty


@pytest.mark.clickhouse
def test_pages_say_the_same_under_any_profile(foreign: ForeignServer, newest_s: int) -> None:
    async def said(user: str) -> list[Any]:
        data = Data(ClickHouse((foreign.endpoint(user),)), list, dict)
        near = await data.headroom({})
        answers = [near, await data.topics({}), await data.quota_changes({}), await data.summary({})]
        return [*answers, await data.client({"cluster": "c", "user": "alice", "client_id": "app"})]

    plain = asyncio.run(said("plain"))
    assert asyncio.run(said("pages")) in (plain, asyncio.run(said("plain")))  # a new minute may begin after the first
    near, topics, *_ = plain
    assert {row["client_id"]: row["level"] for row in near}["app"] in ("critical", "throttled")
    with connected(foreign.endpoint("plain")) as client:
        text = client.command(f"SELECT toString(toDateTime({newest_s}, 'UTC'))")
    assert near[0]["window_start"] == text
    assert topics[0]["window_start"].endswith(":00")
    assert abs(int(topics[0]["window_start"][14:16]) - int(str(text)[14:16])) in (*range(10), *range(50, 60))
