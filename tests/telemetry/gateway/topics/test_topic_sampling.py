"""Estimates of bytes by topic against what a script sent: unbiased, and nothing passes differently for being read."""

import random
import struct
from collections import Counter
from itertools import pairwise

import pytest

from exporters.model import SampledTopics
from telemetry.gateway.connection import ConnectionLimits
from telemetry.gateway.topic_sampling import TopicSampler
from tests.telemetry.gateway.dialogue import Both, framed, produced, request, response


def records(topics: dict[str, int], head: bytes = b"") -> bytes:
    """Topics of one partition each, whose index and `head` precede the records."""
    encoded = struct.pack(">i", len(topics))
    for name, size in topics.items():
        encoded += struct.pack(">h", len(name)) + name.encode() + struct.pack(">ii", 1, 0)
        encoded += head + struct.pack(">i", size) + bytes(size)
    return encoded


def produce(correlation: int, topics: dict[str, int]) -> bytes:
    return request(0, 3, correlation, struct.pack(">hhi", -1, 1, 1000) + records(topics))


def fetched(correlation: int, topics: dict[str, int]) -> bytes:
    """Version 4: records behind offsets and no aborted transactions."""
    return response(1, 4, correlation, bytes(4) + records(topics, struct.pack(">hqqi", 0, 9, 9, 0)))


class Sampled:
    def __init__(self, sample: float, seed: int = 1) -> None:
        self.seen: list[SampledTopics] = []
        self.both = Both(ConnectionLimits(topics=TopicSampler(sample, random.Random(seed).random, self.seen.append)))


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_those_of_the_script(seed: int) -> None:
    """Frames alternate: a sampler that took each n-th frame would see one topic only."""
    sampled, rng = Sampled(0.1, seed), random.Random(seed)
    sent: Counter[str] = Counter()
    for number in range(60_000):
        topics = {"often": rng.randrange(200, 400)} if number % 4 else {"seldom": rng.randrange(200, 400)}
        sent.update(topics)
        sampled.both.client(produce(number, topics))
        sampled.both.broker(produced(3, number, 0))
    read: Counter[str] = Counter()
    for frame in sampled.seen:
        read.update(frame.topics)
    assert read.total() / 0.1 == pytest.approx(sent.total(), rel=0.05)
    for topic, nbytes in sent.items():
        assert read[topic] / read.total() == pytest.approx(nbytes / sent.total(), rel=0.05)


@pytest.mark.parametrize("sample", [0.5, 0.1, 0.01])
def test_each_frame_is_taken_with_the_same_probability(sample: float) -> None:
    sampler = TopicSampler(sample, random.Random(7).random, lambda _: None)
    taken = [sampler.takes_next() for _ in range(200_000)]
    assert sum(taken) == pytest.approx(200_000 * sample, rel=0.1)
    again = sum(first and second for first, second in pairwise(taken))  # independent of the one before
    assert again == pytest.approx(200_000 * sample**2, abs=4 * (200_000 * sample**2) ** 0.5 + 1)


@pytest.mark.parametrize("step", [1, 7, 64, 100_000])
def test_all_frames_are_read_with_sample_1_and_pass_unchanged_in_whatever_pieces(step: int) -> None:
    sampled = Sampled(1.0)
    requests = [produce(1, {"orders": 700, "payments": 30}), request(1, 4, 2, b"which"), produce(3, {"b": 1})]
    responses = [produced(3, 1, 0), fetched(2, {"orders": 5_000, "empty": 0}), produced(3, 3, 0)]
    stream, answers = b"".join(requests), b"".join(responses)
    both = sampled.both
    assert b"".join(both.client(stream[at : at + step]) for at in range(0, len(stream), step)) == stream
    assert b"".join(both.broker(answers[at : at + step]) for at in range(0, len(answers), step)) == answers
    assert [(frame[:4], dict(frame.topics)) for frame in sampled.seen] == [
        (("ANONYMOUS", "app", "10.0.0.1", "in"), {"orders": 700, "payments": 30}),
        (("ANONYMOUS", "app", "10.0.0.1", "in"), {"b": 1}),
        (("ANONYMOUS", "app", "10.0.0.1", "out"), {"orders": 5_000}),
    ]


def test_a_malformed_request_passes_and_is_not_counted() -> None:
    sampled = Sampled(1.0)
    whole = produce(1, {"orders": 70})
    for damaged in (framed(whole[4:] + b"more"), framed(whole[4:-1])):
        assert sampled.both.client(damaged) == damaged
    assert sampled.seen == []
