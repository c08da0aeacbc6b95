"""Owners of delegation tokens, as the cluster lists them (DescribeDelegationToken, KIP-48). Sans-I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

_MAX_TOKENS = 100_000
_MAX_UNKNOWN = 1_000


class TokenOwners:
    """`unknown` is called on the first lookup of an unknown token, once until the next `replace`.

    The reader of the cluster's tokens calls `replace` after each attempt, with the previous owners if it failed.
    """

    def __init__(self) -> None:
        self.unknown: Callable[[], None] = _ignore
        self.owners: Mapping[str, str] = {}
        self._asked_for: set[str] = set()

    def owner_of(self, token_id: str) -> str | None:
        """The owner's name without its type; None when it is not known."""
        owner = self.owners.get(token_id)
        if owner is None and token_id not in self._asked_for and len(self._asked_for) < _MAX_UNKNOWN:
            self._asked_for.add(token_id)
            self.unknown()
        return owner

    def replace(self, owners: Mapping[str, str]) -> None:
        """`owners`: id -> owner, of all tokens that Headroom may see."""
        self.owners = dict(itertools.islice(owners.items(), _MAX_TOKENS))
        self._asked_for.clear()


def _ignore() -> None:
    """The default callback."""
