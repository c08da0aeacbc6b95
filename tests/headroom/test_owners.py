"""How many clients are matched with teams in an hour, whatever names clients make up. The store is one that counts."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.model import UNOWNED
from headroom.owners import OwnersInForce
from quota_metrics.config.owners import parse_owners
from quota_metrics.levels.minute import CLIENTS_WITH_A_TEAM

OWNERS = parse_owners(b"owners: [{team: payments, client-id: '*7'}]")
MOST = 500_000


class Clients:
    """A store that knows teams of `known` clients; `new` ones have none yet."""

    def __init__(self, known: int, new: int) -> None:
        self.known, self.new = known, new
        self.teams: list[str] = []

    def rows(self, sql: str, asked: dict[str, Any]) -> list[Row]:
        assert asked["owners"] == OWNERS.checksum
        if sql == CLIENTS_WITH_A_TEAM:
            return [{"clients": self.known}]
        names = range(len(self.teams), min(self.new, len(self.teams) + asked["clients"]))
        return [{"user": "u", "client_id": f"c-{number}"} for number in names]

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        assert table == "client_teams"
        assert token
        self.teams += map(str, rows.column("team").to_pylist())


@pytest.mark.parametrize(
    ("known", "new", "matched"),
    [(0, 0, 0), (0, 100, 100), (0, 120_000, 120_000), (MOST - 5, 100, 5), (MOST, 100, 0), (MOST + 9, 100, 0)],
)
def test_clients_are_matched_up_to_a_number(known: int, new: int, matched: int) -> None:
    store = Clients(known, new)
    assert OwnersInForce(OWNERS).match(cast(ClickHouse, store), 60) == OWNERS.checksum
    assert store.teams == ["payments" if number % 10 == 7 else UNOWNED for number in range(matched)]


def test_without_owners_the_store_is_not_asked() -> None:
    assert OwnersInForce().match(cast(ClickHouse, None), 60) == 0
