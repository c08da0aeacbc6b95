"""Statements mean the same under profiles of other people, or the connection is refused by the setting's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import ANY_DATABASE
from exporters.clickhouse.errors import StoreSettingError
from exporters.clickhouse.profile import (
    ASSUMED,
    LIMITS,
    limits_to_send,
    low_limits,
    refuse_fixed,
    settings_to_send,
)
from exporters.clickhouse.store import TransientWriteError
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore
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
EQUAL = ("max_threads", "max_execution_time", "log_comment", "join_use_nulls")
PROFILES = {
    "plain": Profile(),
    "hostile": Profile(HOSTILE),
    "equal": Profile({"session_timezone": "UTC"}, frozenset(EQUAL)),
    "bounded": Profile({"max_result_rows": 1000}, bounds={"max_result_rows": {"min": 1, "max": 100_000}}),
    "few_rows": Profile({"max_result_rows": 1000}, frozenset({"max_result_rows"})),
    "zone": Profile({}, frozenset({"session_timezone"})),
    "tokens": Profile({"session_timezone": "UTC"}, frozenset({"insert_deduplication_token"})),
    "reader": Profile({"readonly": 1, "session_timezone": "UTC"}),
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
    return ClickHouse((server.endpoint(profile, ANY_DATABASE),), settings={"max_threads": "1"})


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
    assert settings_to_send(same, "me") == {}
    other = {**server, "join_algorithm": Setting("partial_merge"), "compatibility": Setting("24.1")}
    assert settings_to_send(other, "me") == {"join_algorithm": "default", "compatibility": ""}


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
