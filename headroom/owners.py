"""The owners in force: the file of the setting `owners`, and which clients of the store it gives to which team."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from exporters.clickhouse.client import ClickHouse, Row
from headroom.errors import ServeError
from quota_metrics.config.owners import NO_OWNERS, Owners, OwnersError, parse_owners
from quota_metrics.levels.minute import CLIENTS_WITH_A_TEAM, CLIENTS_WITHOUT_A_TEAM

if TYPE_CHECKING:  # imported late: only a new client needs it, and it is slow
    import pyarrow as pa

_AT_ONCE = 50_000
_MOST = 10 * _AT_ONCE  # clients of an hour; further ones are of no team, so that names that clients make up cost little


def owners_of(file: Path | None) -> Owners:
    """The owners of a file; none without a file. Raises ServeError."""
    if file is None:
        return NO_OWNERS
    try:
        return parse_owners(file.read_bytes())
    except OSError as exc:
        raise ServeError(f"owners: cannot read {file}: {exc.strerror}") from exc
    except OwnersError as exc:
        raise ServeError(f"owners: {file}: {exc}") from exc


class OwnersInForce:
    """`owners` is replaced when the settings are reloaded."""

    def __init__(self, owners: Owners = NO_OWNERS) -> None:
        self.owners = owners

    def match(self, store: ClickHouse, window_s: int) -> int:
        """Writes the teams of a minute's clients that client_teams lacks, or has for an hour.

        Returns the checksum under which it has them, 0 without owners. Raises StoreError.
        """
        owners = self.owners
        if not owners.owners:
            return 0
        asked = {"window_s": window_s, "owners": owners.checksum}
        (known,) = store.rows(CLIENTS_WITH_A_TEAM, asked)
        left = _MOST - int(known["clients"])
        while (most := min(left, _AT_ONCE)) > 0:
            clients = store.rows(CLIENTS_WITHOUT_A_TEAM, {**asked, "clients": most})
            if clients:
                store.insert("client_teams", _teams(owners, clients), token=uuid.uuid4().hex)
            if len(clients) < most:
                break
            left -= most
        return owners.checksum


def _teams(owners: Owners, clients: list[Row]) -> pa.Table:
    import pyarrow as pa

    users, client_ids = ([client[name] for client in clients] for name in ("user", "client_id"))
    return pa.table(
        {
            "owners": pa.array([owners.checksum] * len(clients), pa.uint64()),
            "user": pa.array(users, pa.string()),
            "client_id": pa.array(client_ids, pa.string()),
            "team": pa.array([owners.owner(*names).team for names in zip(users, client_ids, strict=True)], pa.string()),
        }
    )
