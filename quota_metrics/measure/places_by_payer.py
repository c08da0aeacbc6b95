"""Clients share room: who holds how many places, who loses one to others, and how many events each caused. Sans-I/O."""

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Place = TypeVar("Place", bound=Hashable)

_MAX_PAYERS: Final = 1_000
_RECENT_MS: Final = 300_000


class PlacesByPayer(Generic[Place]):
    """The places of each payer. All operations take constant time, however many payers there are."""

    def __init__(self) -> None:
        self._places: dict[str, dict[Place, None]] = {}  # oldest first
        self._payers: dict[Place, str] = {}
        self._by_size: dict[int, dict[str, None]] = {}  # number of places -> payers that hold as many
        self._largest = 0

    def add(self, place: Place, payer: str) -> None:
        """`place` is not held yet."""
        held = self._places.setdefault(payer, {})
        held[place] = None
        self._payers[place] = payer
        self._resize(payer, len(held) - 1, len(held))

    def remove(self, place: Place) -> str:
        """Returns the payer. Raises KeyError."""
        payer = self._payers.pop(place)
        held = self._places[payer]
        del held[place]
        if not held:
            del self._places[payer]
        self._resize(payer, len(held) + 1, len(held))
        return payer

    def taken_for(self, payer: str) -> Place | None:
        """The oldest place of the payer that holds most; None if `payer` would then hold as many as that one."""
        if self._largest <= len(self._places.get(payer, ())) + 1:
            return None
        return next(iter(self._places[next(iter(self._by_size[self._largest]))]))

    def of_largest(self) -> list[Place]:
        """The places of the payer that holds most, oldest first; empty when there are none."""
        if not self._largest:
            return []
        return list(self._places[next(iter(self._by_size[self._largest]))])

    def _resize(self, payer: str, before: int, after: int) -> None:
        if before:
            alike = self._by_size[before]
            del alike[payer]
            if not alike:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[payer] = None
        if after > self._largest or (before == self._largest and before not in self._by_size):
            self._largest = after  # sizes change by one, so `after` is the largest now


class PayerCount(NamedTuple):
    payer: str
    number: int
    last_ms: int


class CountByPayer:
    """Counts events by payer. Bounded: the payer whose last one is oldest is forgotten first."""

    def __init__(self, max_payers: int = _MAX_PAYERS) -> None:
        self.total = 0
        self._max_payers = max_payers
        self._payers: dict[str, PayerCount] = {}  # latest last

    def add(self, payer: str, now_ms: int) -> None:
        self.total += 1
        before = self._payers.pop(payer, None)
        if before is None and len(self._payers) >= self._max_payers:
            del self._payers[next(iter(self._payers))]
        self._payers[payer] = PayerCount(payer, (before.number if before else 0) + 1, now_ms)

    def recent(self, now_ms: int) -> list[PayerCount]:
        """Payers with an event in the last five minutes, those with most events first."""
        recent = [count for count in self._payers.values() if now_ms - count.last_ms < _RECENT_MS]
        return sorted(recent, key=lambda count: (-count.number, count.payer))
