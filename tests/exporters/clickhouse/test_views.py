"""Views say the same to dashboards and people whose profile is another one, on a server in another zone, and so do the
queries of pages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pytest

from exporters.clickhouse.client import ClickHouse
from headroom.web.data import Data
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from tests.kit.clickhouse import QueriedStore, connected
from tests.kit.platforms.profiles import ForeignServer, Profile, foreign_server
from tests.kit.platforms.rows import fill, views

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
