"""Places by payer against a count that is made anew each time, and the bounded table of what was left out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.measure.places_by_payer import CountByPayer, PayerCount, PlacesByPayer


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=80), st.integers(1, 12))
def test_a_place_is_taken_from_the_payer_that_holds_most(drawn: list[tuple[str, int]], room: int) -> None:
    places: PlacesByPayer[tuple[str, int]] = PlacesByPayer()
    held: dict[tuple[str, int], None] = {}
    for place in drawn:
        if place in held:
            assert places.remove(place) == place[0]
            del held[place]
            continue
        sizes = Counter(payer for payer, _ in held)
        taken = places.taken_for(place[0])
        if len(held) >= room:
            most = max(sizes.values())
            if most <= sizes[place[0]] + 1:
                assert taken is None
                continue
            assert taken is not None
            assert sizes[taken[0]] == most
            assert taken == next(place for place in held if place[0] == taken[0]), "the oldest"
            places.remove(taken)
            del held[taken]
        places.add(place, place[0])
        held[place] = None


def test_counts_by_payer_are_bounded_and_forgotten() -> None:
    counted = CountByPayer(max_payers=2)
    for at_ms, payer in enumerate(("a", "b", "a", "c")):
        counted.add(payer, at_ms)
    assert counted.total == 4
    assert counted.recent(10) == [PayerCount("a", 2, 2), PayerCount("c", 1, 3)]
    assert counted.recent(300_002) == [PayerCount("c", 1, 3)]
