"""Which team each client belongs to, and the rows of client_teams that say so to jobs and views."""

import uuid
from collections.abc import Iterable
from typing import Final, TypeAlias

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from exporters.model import UNOWNED
from quota_metrics.config.owners import NO_OWNERS, Owners

ClientName: TypeAlias = tuple[str, str]  # user, client-id

_AGAIN_MS: Final = 3_600_000  # an active client's row is written again after an hour
_AT_ONCE: Final = 50_000  # rows of one insert
# Clients that are matched in an hour. Further ones are of no team, so that names that clients make up cost little.
_MOST: Final = 10 * _AT_ONCE


class Teams:
    """Matches clients with `owners`, each once an hour."""

    def __init__(self, owners: Owners = NO_OWNERS) -> None:
        self._owners = owners
        self._teams: dict[ClientName, str] = {}
        self._since_ms = 0

    def follow(self, owners: Owners) -> None:
        self._owners, self._teams = owners, {}

    def match(self, store: ClickHouse, clients: Iterable[ClientName], now_ms: int) -> None:
        """Writes the teams of clients that were not matched in this hour. Raises StoreError."""
        if now_ms - self._since_ms >= _AGAIN_MS:
            self._teams, self._since_ms = {}, now_ms
        if not self._owners.owners:
            return
        fresh = [client for client in dict.fromkeys(clients) if client not in self._teams]
        fresh = fresh[: max(_MOST - len(self._teams), 0)]
        teams = {client: self._owners.owner(*client).team for client in fresh}
        for first in range(0, len(fresh), _AT_ONCE):
            part = fresh[first : first + _AT_ONCE]
            rows = pa.table(
                {
                    "owners": pa.array([self._owners.checksum] * len(part), pa.uint64()),
                    "user": pa.array([user for user, _ in part], pa.string()),
                    "client_id": pa.array([client_id for _, client_id in part], pa.string()),
                    "team": pa.array([teams[client] for client in part], pa.string()),
                }
            )
            store.insert("client_teams", rows, token=uuid.uuid4().hex)
        self._teams |= teams

    def team(self, client: ClientName) -> str:
        """Its team; unowned for a client that nobody owns."""
        return self._teams.get(client, UNOWNED)
