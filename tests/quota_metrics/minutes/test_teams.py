"""How many clients are matched with teams in an hour, whatever names clients make up. The store is one that counts."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.model import UNOWNED
from quota_metrics.config.owners import parse_owners
from quota_metrics.minutes.teams import Teams

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
