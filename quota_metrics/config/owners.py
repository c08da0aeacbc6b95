"""Owners: which team a client belongs to, by patterns on user and client id; and the prices of traffic. Sans-I/O.

    owners:
      - team: payments
        user: "payments-*"
        contact: payments@example.org
        page: https://wiki.example.org/payments
      - {team: search, client-id: "indexer-?"}
    prices: {in_per_gb: 0.01, out_per_gb: 0.02}

The first owner whose patterns all fit owns the client. `*` is any text and `?` any character; case counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

UNOWNED: Final = "unowned"
_MAX_FILE_BYTES: Final = 4 << 20
_Pattern = Annotated[str, Field(min_length=1, max_length=500)]


class OwnersError(ValueError):
    """The file is no list of owners; the message names the fault."""


class Owner(NamedTuple):
    """A team and how it is reached."""

    team: str
    contact: str = ""
    page: str = ""


class Prices(BaseModel):
    """Money for each 10^9 bytes, in any currency."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    in_per_gb: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    out_per_gb: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class _Entry(BaseModel):
    """An owner in the file. `[` in a name is a character, not a set: brackets are quoted before they are matched."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    team: str = Field(min_length=1, max_length=200)
    user: _Pattern | None = None
    client_id: _Pattern | None = Field(default=None, alias="client-id")
    contact: str = ""
    page: str = ""

    @model_validator(mode="after")
    def _has_a_pattern(self) -> _Entry:
        if self.user is None and self.client_id is None:
            raise ValueError(f"{self.team} has neither a pattern of user nor of client-id")
        if self.team == UNOWNED:
            raise ValueError(f"no team can be named {UNOWNED}")
        return self

    def fits(self, user: str, client_id: str) -> bool:
        return _fits(self.user, user) and _fits(self.client_id, client_id)


class Owners(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    owners: Sequence[_Entry] = ()
    prices: Prices = Prices()

    def owner(self, user: str, client_id: str) -> Owner:
        """The owner of a client; the team UNOWNED when nobody is."""
        for each in self.owners:
            if each.fits(user, client_id):
                return Owner(each.team, each.contact, each.page)
        return Owner(UNOWNED)


def parse_owners(content: bytes) -> Owners:
    """Reads a file of owners. Raises OwnersError."""
    if len(content) > _MAX_FILE_BYTES:
        raise OwnersError(f"a file of owners has at most {_MAX_FILE_BYTES} bytes")
    try:
        found: Any = yaml.safe_load(content) or {}
        return Owners.model_validate(found)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise OwnersError(f"the owners are no YAML: {exc}") from exc
    except ValidationError as exc:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors()[:20])
        raise OwnersError(f"wrong owners: {faults}") from exc


def _fits(pattern: str | None, name: str) -> bool:
    return pattern is None or fnmatchcase(name, pattern.replace("[", "[[]"))
