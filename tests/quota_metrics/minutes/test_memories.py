"""What a service remembers. After a restart it has the types that the verdict declares: compiled, it takes no others.
How many clients are matched with teams in an hour, whatever names clients make up: their store is one that counts."""

from typing import Any, cast

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.model import UNOWNED
from quota_metrics.config.owners import parse_owners
from quota_metrics.minutes.memories import restored
from quota_metrics.minutes.teams import Teams
from quota_metrics.verdict.window import Base, Onset, PastWindow

MINUTE_MS = 1_795_168_860_000
# A row of past.sql, as ClickHouse's Arrow has it.
ROW: dict[str, Any] = {
    "cluster": "c", "source": "gateway", "quota_key": "producer_byte_rate", "user": "u", "client_id": "app",
    "start_ms": pa.scalar(MINUTE_MS - 60_000, pa.int64()), "broker_id": pa.scalar(1, pa.int32()),
    "is_worst": pa.scalar(1, pa.uint8()), "value": 0.9, "muted_ms": pa.scalar(5, pa.int64()),
    "is_onset": pa.scalar(1, pa.uint8()), "cause": "", "own_cause": "", "limit": 100.0,
    "limit_known": pa.scalar(1, pa.uint8()), "usage": 90.0, "group_usage": 90.0, "bucket_user": "u",
    "bucket_client_id": "app", "culprit_user": "", "culprit_client_id": "", "culprit_share": None,
}  # fmt: skip


class OnePastMinute:
    def table(self, _sql: str, _parameters: object) -> pa.Table:
        return pa.table(
            {name: pa.array([value]) if value is not None else pa.nulls(1, pa.float64()) for name, value in ROW.items()}
        )


def types(values: tuple[Any, ...]) -> list[type]:
    return [type(value) for value in values]


def test_memory_of_a_stored_minute() -> None:
    store = cast(ClickHouse, OnePastMinute())
    (memory,) = restored(store, MINUTE_MS).memories.values()
    assert memory.past == (PastWindow(MINUTE_MS - 60_000, 0.9, 5.0, 90.0, 90.0),)
    assert types(memory.past[0]) == [int, float, float, float, float]
    assert memory.bases == {1: Base(100.0, True, 90.0, 90.0, "u", "app", "", "", None)}
    assert types(memory.bases[1]) == [float, bool, float, float, str, str, str, str, type(None)]
    assert memory.onset == Onset(MINUTE_MS - 60_000, "", "", 0.0)


OWNERS = parse_owners(b"owners: [{team: payments, client-id: '*7'}]")
MOST = 500_000
HOUR_MS = 3_600_000


class Clients:
    """A store of client_teams."""

    def __init__(self) -> None:
        self.teams: list[str] = []

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        assert table == "client_teams"
        assert token
        assert set(rows.column("owners").to_pylist()) == {OWNERS.checksum}
        self.teams += map(str, rows.column("team").to_pylist())


def matched(teams: Teams, store: Clients, numbers: range, at_ms: int = 1) -> int:
    """How many rows are written for clients c-<number>."""
    before = len(store.teams)
    teams.match(cast(ClickHouse, store), (("u", f"c-{number}") for number in numbers), at_ms)
    return len(store.teams) - before


@pytest.mark.parametrize(
    ("earlier", "fresh", "rows"),
    [(0, 0, 0), (0, 100, 100), (0, 120_000, 120_000), (MOST - 5, 100, 5), (MOST, 100, 0)],
)
def test_clients_are_matched_up_to_a_number(earlier: int, fresh: int, rows: int) -> None:
    teams, store = Teams(OWNERS), Clients()
    assert matched(teams, store, range(earlier)) == earlier
    assert matched(teams, store, range(earlier, earlier + fresh)) == rows
    expected = ["payments" if number % 10 == 7 else UNOWNED for number in range(earlier + rows)]
    assert store.teams == expected
    assert [teams.team(("u", f"c-{number}")) for number in range(earlier + rows)] == expected
    assert teams.team(("u", f"c-{MOST + 7}")) == UNOWNED


def test_a_client_is_matched_once_an_hour_and_by_changed_owners() -> None:
    teams, store = Teams(), Clients()
    assert matched(teams, store, range(10), HOUR_MS) == 0  # nobody owns anything
    teams.follow(OWNERS)
    assert matched(teams, store, range(10), HOUR_MS) == 10
    assert matched(teams, store, range(20), 2 * HOUR_MS - 1) == 10
    assert matched(teams, store, range(20), 2 * HOUR_MS) == 20
