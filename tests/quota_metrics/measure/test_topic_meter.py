"""Sums by client and topic within bounds, and the places that clients pay for."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from exporters.model import SampledTopics
from quota_metrics.measure.places_by_payer import CountByPayer, PayerCount, PlacesByPayer
from quota_metrics.measure.topic_meter import OTHERS, TopicCount, TopicMeter


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


USERS = st.sampled_from([*"abcde", OTHERS])
FRAMES = st.lists(
    st.builds(
        SampledTopics,
        user=USERS,
        client_id=st.sampled_from([*(f"c{n}" for n in range(6)), OTHERS]),
        payer=USERS,
        direction=st.sampled_from(["in", "out"]),
        topics=st.dictionaries(st.sampled_from([f"t{n}" for n in range(9)]), st.integers(1, 1000), max_size=4),
    ),
    max_size=60,
)


def sums(frames: list[SampledTopics]) -> Counter[tuple[str, str, str, str]]:
    sums: Counter[tuple[str, str, str, str]] = Counter()
    for frame in frames:
        for topic, nbytes in frame.topics.items():
            sums[frame.direction, frame.user, frame.client_id, topic] += nbytes
    return sums


@given(FRAMES)
def test_with_room_sums_are_exact(frames: list[SampledTopics]) -> None:
    meter = TopicMeter()
    for frame in frames:
        meter.observe(frame)
    counts = meter.take()
    assert {count[:4]: count.nbytes for count in counts} == sums(frames)
    assert sum(count.frames for count in counts) == sum(len(frame.topics) for frame in frames)
    assert meter.take() == []


@given(FRAMES, st.integers(4, 12))
def test_without_room_nothing_is_lost_but_names(frames: list[SampledTopics], room: int) -> None:
    meter = TopicMeter(max_slots=room)
    for frame in frames:
        meter.observe(frame)
        assert len(meter) <= room + 2  # and what is of nobody in particular, in each direction
    exact, counts = sums(frames), meter.take()
    for direction in ("in", "out"):
        assert sum(count.nbytes for count in counts if count.direction == direction) == sum(
            nbytes for slot, nbytes in exact.items() if slot[0] == direction
        )
    for count in counts:
        if OTHERS not in count:
            assert count.nbytes <= exact[count[:4]]


def test_who_brings_many_names_loses_the_small_ones() -> None:
    meter = TopicMeter(max_slots=100)
    for n in range(20):
        meter.add(TopicCount("in", "alice", "app", f"orders-{n}", "alice", 10, 1))
    for n in range(5_000):
        meter.add(TopicCount("in", "mallory", f"client-{n % 700}", f"invented-{n}", "mallory", 1 + n // 4_999 * 900, 1))
    counts = meter.take()
    assert len([count for count in counts if count.user == "alice" and count.topic != OTHERS]) == 20
    assert sum(count.nbytes for count in counts if count.user == "mallory") == 5_900
    assert max(counts, key=lambda count: count.nbytes if count.topic != OTHERS else 0).topic == "invented-4999"
