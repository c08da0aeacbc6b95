"""Sums what was read of sampled frames by client and topic, within bounds. Sans-I/O.

Clients invent client ids and topic names. So there are at most `max_slots` sums at a time. When another one is needed,
room is made at the payer that holds most: the least half of its sums become part of wider ones, whose names are
OTHERS. Nothing is lost by that, only what it was:

    user, client-id, topic  ->  user, client-id, OTHERS  ->  user, OTHERS, OTHERS  ->  OTHERS, OTHERS, OTHERS
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from exporters.model import SampledTopics
from quota_metrics.measure.places_by_payer import PlacesByPayer

OTHERS: Final = "(others)"  # no topic may have this name
MAX_SLOTS: Final = 10_000

_WIDEST: Final = (OTHERS, OTHERS, OTHERS)

_Slot: TypeAlias = tuple[str, str, str, str]  # direction, user, client-id, topic


class TopicCount(NamedTuple):
    """The sum of one client and topic. `nbytes`: of records; `frames`: in which the topic had records."""

    direction: str
    user: str
    client_id: str
    topic: str
    payer: str
    nbytes: int
    frames: int


class TopicMeter:
    """The sums since the last `take`."""

    def __init__(self, max_slots: int = MAX_SLOTS) -> None:
        self._max_slots = max_slots
        self._sums: dict[_Slot, _Sum] = {}
        self._places: PlacesByPayer[_Slot] = PlacesByPayer()  # all but those that are as wide as can be

    def __len__(self) -> int:
        return len(self._sums)

    def observe(self, sampled: SampledTopics) -> None:
        for topic, nbytes in sampled.topics.items():
            self._sum_of((sampled.direction, sampled.user, sampled.client_id, topic), sampled.payer).add(nbytes, 1)

    def add(self, count: TopicCount) -> None:
        """Adds a sum, as of another meter."""
        self._sum_of(count[:4], count.payer).add(count.nbytes, count.frames)

    def take(self) -> list[TopicCount]:
        sums, self._sums, self._places = self._sums, {}, PlacesByPayer()
        return [TopicCount(*slot, total.payer, total.nbytes, total.frames) for slot, total in sums.items()]

    def _sum_of(self, slot: _Slot, payer: str) -> _Sum:
        while slot not in self._sums and len(self._sums) >= self._max_slots and self._make_room():
            pass
        return self._sums.get(slot) or self._new(slot, payer)

    def _new(self, slot: _Slot, payer: str) -> _Sum:
        total = self._sums[slot] = _Sum(payer)
        if slot[1:] != _WIDEST:
            self._places.add(slot, payer)
        return total

    def _make_room(self) -> bool:
        """Widens the least half of the sums of the payer that holds most; False when all are as wide as can be."""
        held = sorted(self._places.of_largest(), key=lambda slot: self._sums[slot].nbytes)
        for slot in held[: (len(held) + 1) // 2]:
            self._places.remove(slot)
            narrow = self._sums.pop(slot)
            direction, user, client_id, topic = slot
            if topic != OTHERS:
                wider = (direction, user, client_id, OTHERS)
            else:
                wider = (direction, user if client_id != OTHERS else OTHERS, OTHERS, OTHERS)
            (self._sums.get(wider) or self._new(wider, narrow.payer)).add(narrow.nbytes, narrow.frames)
        return bool(held)


class _Sum:
    __slots__ = ("frames", "nbytes", "payer")

    def __init__(self, payer: str) -> None:
        self.payer = payer
        self.nbytes = self.frames = 0

    def add(self, nbytes: int, frames: int) -> None:
        self.nbytes += nbytes
        self.frames += frames
