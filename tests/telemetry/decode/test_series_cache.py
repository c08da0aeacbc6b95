"""A series is described again after it expires, after eviction and after its batch fails."""

from __future__ import annotations

import tracemalloc

import numpy as np

from telemetry.decode.series import KnownSeries, owner


def written(known_series: KnownSeries, now_ms: int, client: bytes, *ids: int) -> None:
    known_series.begin(now_ms)
    known_series.add(client, ids, now_ms)
    assert known_series.keep() == len(ids)


def test_oldest_client_is_evicted_at_the_size_limit() -> None:
    known_series = KnownSeries(1000, 1000)  # two clients
    for client, *ids in ((b"a", 1, 2), (b"b", 3), (b"c", 2**64 - 1)):
        written(known_series, 0, client, *ids)
    assert [known_series.of(client).tolist() for client in (b"a", b"b", b"c")] == [[], [3], [2**64 - 1]]
    assert len(known_series) == 2


def test_clients_take_no_more_memory_than_they_are_counted() -> None:
    known_series = KnownSeries(1 << 20, 1000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(500):
            client = owner("prod", "User:shop", f"checkout-{number}", f"{number:032x}")
            written(known_series, 0, client, *range(number * 12, number * 12 + 12))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * known_series.nbytes


def test_series_of_a_client_expire_together() -> None:
    known_series = KnownSeries(1 << 20, 10)
    written(known_series, 0, b"a", 1)
    written(known_series, 5, b"b", 2)
    written(known_series, 9, b"a", 3)
    known_series.begin(9)
    assert known_series.of(b"a").tolist() == [1, 3]
    known_series.begin(10)
    assert (known_series.of(b"a").tolist(), known_series.of(b"b").tolist(), len(known_series)) == ([], [2], 1)


def test_series_of_a_failed_batch_are_forgotten() -> None:
    known_series = KnownSeries(1 << 20, 10)
    written(known_series, 0, b"a", 1)
    known_series.begin(1)
    known_series.add(b"a", [2], 1)
    known_series.add(b"a", [3], 1)
    known_series.add(b"b", [4], 1)
    assert (known_series.of(b"a").tolist(), known_series.of(b"b").tolist()) == ([1, 2, 3], [4])
    known_series.begin(2)
    assert (known_series.of(b"a").tolist(), known_series.of(b"b").tolist(), len(known_series)) == ([1], [], 1)
    assert known_series.keep() == 0


def test_recalled_series_are_known_within_the_size_limit() -> None:
    known_series = KnownSeries(1000, 10)
    recalled = [(name, at_ms, np.array([n], np.uint64)) for n, (name, at_ms) in enumerate([(b"a", 0), (b"b", 5)])]
    known_series.recall([*recalled, recalled[0], (b"c", 6, recalled[0][2]), (b"d", 6, recalled[0][2])])
    assert [known_series.of(client).tolist() for client in (b"a", b"b", b"c", b"d")] == [[0], [1], [0], []]
    assert len(known_series) == 3
    known_series.begin(10)
    assert [known_series.of(client).tolist() for client in (b"a", b"b")] == [[], [1]]
    assert known_series.keep() == 0
