"""The settings on which the meaning of our statements depends: what a connection sets, and which profiles cannot work.

A server has a default profile, a user may have another, and a service of a vendor keeps the `compatibility` of the day
on which it was made. Each connection compares this table with `system.settings` and sets what differs, so that a
statement means the same everywhere. Most servers differ in the time zone only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreSettingError

if TYPE_CHECKING:  # imported late: only a statement needs it, and it is slow
    from clickhouse_connect.driver.client import Client

SHARING_ENGINES = frozenset({"Replicated", "Shared"})  # of a database whose replicas have the same rows

# A profile that breaks off instead of failing makes a part of a result look like the whole.
_OVERFLOW_MODES = (
    "distinct_overflow_mode",
    "group_by_overflow_mode",
    "join_overflow_mode",
    "read_overflow_mode",
    "read_overflow_mode_leaf",
    "result_overflow_mode",
    "set_overflow_mode",
    "sort_overflow_mode",
    "timeout_overflow_mode",
    "timeout_overflow_mode_leaf",
    "transfer_overflow_mode",
)
ASSUMED: Final[Mapping[str, str]] = MappingProxyType(
    {
        # NULLs, empty sets and types of results
        "aggregate_functions_null_for_empty": "0",
        "cast_keep_nullable": "0",
        "data_type_default_nullable": "0",
        "empty_result_for_aggregation_by_constant_keys_on_empty_set": "1",
        "empty_result_for_aggregation_by_empty_set": "0",
        "enable_extended_results_for_datetime_functions": "0",
        "function_date_trunc_return_type_behavior": "0",
        "group_by_use_nulls": "0",
        "input_format_force_null_for_omitted_fields": "0",
        "input_format_null_as_default": "1",
        "insert_null_as_default": "1",
        "join_use_nulls": "0",
        "least_greatest_legacy_null_behavior": "0",
        "transform_null_in": "0",
        "use_variant_as_common_type": "0",
        # which names, rows and joins are meant
        "additional_result_filter": "",
        "additional_table_filters": "{}",
        "allow_experimental_analyzer": "1",
        "any_join_distinct_right_table_keys": "0",
        "asterisk_include_alias_columns": "0",
        "asterisk_include_materialized_columns": "0",
        "count_distinct_implementation": "uniqExact",
        "dialect": "clickhouse",
        "distributed_group_by_no_merge": "0",
        "do_not_merge_across_partitions_select_final": "0",
        "enable_global_with_statement": "1",
        "enable_order_by_all": "1",
        "enable_positional_arguments": "1",
        "enable_scopes_for_with_statement": "1",
        "extremes": "0",
        "final": "0",
        "join_algorithm": "default",
        "join_any_take_last_row": "0",
        "join_default_strictness": "ALL",
        "limit": "0",
        "offset": "0",
        "prefer_column_name_to_alias": "0",
        "short_circuit_function_evaluation": "enable",
        "single_join_prefer_left_table": "1",
        "union_default_mode": "",
        # all rows and no old ones, or an error
        **dict.fromkeys(_OVERFLOW_MODES, "throw"),
        "allow_experimental_parallel_reading_from_replicas": "0",
        "force_data_skipping_indices": "",
        "force_index_by_date": "0",
        "force_optimize_projection": "0",
        "force_primary_key": "0",
        "ignore_cold_parts_seconds": "0",
        "min_execution_speed": "0",
        "min_execution_speed_bytes": "0",
        "prefer_warmed_unmerged_parts_seconds": "0",
        "skip_unavailable_shards": "0",
        "use_query_cache": "0",
        # times and formats
        "date_time_output_format": "simple",
        "date_time_overflow_behavior": "ignore",
        "input_format_arrow_allow_missing_columns": "1",
        "input_format_arrow_case_insensitive_column_matching": "0",
        "input_format_defaults_for_omitted_fields": "1",
        "output_format_arrow_fixed_string_as_fixed_byte_array": "1",
        "output_format_arrow_low_cardinality_as_dictionary": "0",
        "output_format_arrow_string_as_string": "1",
        "output_format_json_array_of_rows": "0",
        "output_format_json_map_as_array_of_tuples": "0",
        "output_format_json_named_tuples_as_objects": "1",
        "output_format_json_quote_64bit_floats": "0",
        "output_format_json_quote_64bit_integers": "0",
        "output_format_json_quote_decimals": "0",
        "output_format_json_quote_denormals": "0",
        "output_format_json_skip_null_value_in_named_tuples": "0",
        "session_timezone": "UTC",
        # an insert that is confirmed is stored, once
        "async_insert": "0",
        "deduplicate_insert": "enable",
        "implicit_transaction": "0",
        "insert_deduplicate": "1",
        "insert_quorum_parallel": "1",
        "materialized_views_ignore_errors": "0",
    }
)
# What our views have themselves, because others read them whose connections set nothing: dashboards, people.
OF_VIEWS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "aggregate_functions_null_for_empty": "0",
        "enable_global_with_statement": "1",
        "join_algorithm": "'direct,parallel_hash,hash'",
        "join_any_take_last_row": "0",
        "join_use_nulls": "0",
        "prefer_column_name_to_alias": "0",
        "single_join_prefer_left_table": "1",
    }
)
# Other values that mean the same to our statements: those with a hash join among them, and names of UTC.
_SAME: Mapping[str, re.Pattern[str]] = {
    "deduplicate_insert": re.compile("backward_compatible_choice"),  # insert_deduplicate decides
    "join_algorithm": re.compile(r".*\b(hash|parallel_hash|default)\b.*"),
    "session_timezone": re.compile(r"(Etc/)?(UTC|UCT|Universal|Zulu)"),
}
# What a profile may give too little of: the least that our statements need; 0 is no limit. Where a user may not raise
# one, a statement that exceeds it is refused, and the error names the limit.
LIMITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "max_ast_depth": 1000,
        "max_ast_elements": 50_000,
        "max_bytes_in_distinct": 0,
        "max_bytes_in_join": 0,
        "max_bytes_in_set": 0,
        "max_bytes_to_sort": 0,
        "max_bytes_to_transfer": 0,
        "max_columns_to_read": 0,
        "max_expanded_ast_elements": 500_000,
        "max_parser_backtracks": 1_000_000,
        "max_parser_depth": 1000,
        "max_partitions_per_insert_block": 1000,
        "max_query_size": 1 << 18,
        "max_result_bytes": 0,
        "max_result_rows": 0,
        "max_rows_in_distinct": 0,
        "max_rows_in_join": 0,
        "max_rows_in_set": 0,
        "max_rows_to_group_by": 0,
        "max_rows_to_sort": 0,
        "max_rows_to_transfer": 0,
        "max_subquery_depth": 100,
        "max_temporary_columns": 0,
        "max_temporary_non_const_columns": 0,
    }
)
# With these a profile that cuts results lets a connection read the profile.
GREETING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "additional_result_filter": "",
        "additional_table_filters": "{}",
        "dialect": "clickhouse",
        "extremes": "0",
        "limit": "0",
        "max_columns_to_read": "0",
        "max_result_bytes": "10000000",
        "max_result_rows": "10000",
        "offset": "0",
        "result_overflow_mode": "throw",
        "use_query_cache": "0",
    }
)
_AS_GOOD_AS_NONE = 1 << 62
_BOUNDING = ("max_", "log_")  # settings that bound what a statement costs
_ARRIVING, _ARRIVED = "log_comment", "headroom"
_BOUNDS = "SELECT name, min, max FROM system.settings WHERE name IN {names:Array(String)}"
_ENGINE = "SELECT engine FROM system.databases WHERE name = currentDatabase()"


class ServerSetting(Protocol):
    """A row of system.settings."""

    @property
    def value(self) -> str: ...
    @property
    def readonly(self) -> int: ...


def set_assumed(client: Client, endpoint: Endpoint, settings: Mapping[str, str], *, consistent: bool) -> None:
    """Sets what our statements assume and the profile has otherwise, for all statements of the connection.

    Raises StoreSettingError, ClickHouseError.
    """
    server, user = client.server_settings, endpoint.user
    agreed = settings_to_send(server, user, str(client.server_tz))
    if low := low_limits(server):
        rows = client.query(_BOUNDS, {"names": low}).result_rows
        bounds = {name: (_number(lowest), _number(highest)) for name, lowest, highest in rows}
        agreed |= limits_to_send(server, bounds)
    agreed |= allowed(client, settings, user)
    if consistent and client.command(_ENGINE) in SHARING_ENGINES:
        agreed |= settable(server, {"select_sequential_consistency": "1"})
    for name, value in agreed.items():
        client.set_client_setting(name, value)
    if settable(server, {_ARRIVING: ""}):
        text = f"SELECT getSetting('{_ARRIVING}')"
        if client.command(text, settings={_ARRIVING: _ARRIVED}) != _ARRIVED:
            raise StoreSettingError(
                f"settings of statements do not reach the server behind {endpoint}: a proxy between drops them, as"
                " chproxy does; rows that are sent again would count twice, so connect to ClickHouse itself"
                " (docs/clickhouse.md)"
            )


def allowed(client: Client, settings: Mapping[str, str], user: str) -> dict[str, str]:
    """What a statement may send of `settings`. Those that bound its cost are lowered to the profile's constraints, and
    are left out where the profile fixes them. Raises StoreSettingError, ClickHouseError."""
    bounding = {name: value for name, value in settings.items() if name.startswith(_BOUNDING)}
    meaning = {name: value for name, value in settings.items() if name not in bounding}
    refuse_fixed(client.server_settings, meaning, user)
    if sent := settable(client.server_settings, bounding):
        for name, _, highest in client.query(_BOUNDS, {"names": [*sent]}).result_rows:
            if sent[name].isdecimal() and (most := _number(highest)) is not None:
                sent[name] = str(min(int(sent[name]), most))
    return {**meaning, **sent}


def settings_to_send(server: Mapping[str, ServerSetting], user: str, zone: str = "") -> dict[str, str]:
    """Those of ASSUMED that a profile has otherwise. `zone`: of the server, for sessions that set none.

    Raises StoreSettingError when the user may not set one.
    """
    # What else `compatibility` changes is the server's release again.
    assumed = {"compatibility": "", **ASSUMED} if settable(server, {"compatibility": ""}) else ASSUMED
    in_force = {name: setting.value for name, setting in server.items()}
    if in_force.get("session_timezone") == "":
        in_force["session_timezone"] = zone
    differing = {
        name: value
        for name, value in assumed.items()
        if name in in_force
        and in_force[name] != value
        and not (name in _SAME and _SAME[name].fullmatch(in_force[name]))
    }
    refuse_fixed(server, differing, user, in_force)
    return differing


def refuse_fixed(
    server: Mapping[str, ServerSetting],
    settings: Mapping[str, str],
    user: str,
    in_force: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises StoreSettingError for the settings that the user may not set, unless they have the value anyway."""
    fixed = [
        f"{name} = {_text(in_force.get(name, server[name].value))} (needed: {_text(value)})"
        for name, value in settings.items()
        if name in server and server[name].readonly and server[name].value != value
    ]
    if fixed:
        raise StoreSettingError(
            f"the profile of user {user or 'default'!r} fixes what Headroom's statements need otherwise:"
            f" {', '.join(fixed)}; change it there, or let the user set it (docs/clickhouse.md)"
        )


def settable(server: Mapping[str, ServerSetting], settings: Mapping[str, str]) -> dict[str, str]:
    """Those that the server has and this user may set."""
    return {name: value for name, value in settings.items() if name in server and not server[name].readonly}


def low_limits(server: Mapping[str, ServerSetting]) -> list[str]:
    """The names of LIMITS that the profile sets too low, and that the user may raise."""
    low = []
    for name, least in LIMITS.items():
        if settable(server, {name: ""}):
            value = server[name].value
            limit = int(value) if value.isdecimal() else 0
            if limit > 0 and (least == 0 or limit < least):
                low.append(name)
    return low


def limits_to_send(
    server: Mapping[str, ServerSetting], bounds: Mapping[str, tuple[int | None, int | None]]
) -> dict[str, str]:
    """The limits of `bounds` as high as our statements need them, or as the profile's constraints allow. `bounds`: the
    least and the greatest value by name; None: no constraint."""
    raised = {}
    for name, (lowest, highest) in bounds.items():
        value = LIMITS[name]
        if lowest is not None and value < lowest:  # the limit has to be one: as good as none
            value = _AS_GOOD_AS_NONE
        if highest is not None:
            value = min(value, highest)
        if str(value) != server[name].value:
            raised[name] = str(value)
    return raised


def _number(bound: str | None) -> int | None:
    return int(bound) if bound and bound.isdecimal() else None


def _text(value: str) -> str:
    return value if value.isdecimal() else repr(value)
