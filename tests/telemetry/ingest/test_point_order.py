"""Points are sorted as the sorting key of `points` demands, so that ClickHouse does not sort them again."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from exporters.model import Push
from telemetry.decode.templates import PointColumns
from telemetry.ingest.arrow_tables import key_order, push_ranks
from tests.telemetry.decode.payloads import CONNECTION, NOW_MS

METRICS = ["a", "aa", "b", "\N{GREEK SMALL LETTER ALPHA}"]
HOUR_MS = 3_600_000


def senders(rng: random.Random, count: int) -> list[Push]:
    return [
        Push(
            replace(CONNECTION, cluster=rng.choice(["x", "y"]), principal=rng.choice(["p", "pq"])),
            rng.choice(["app", "app-1", "app-10"]),
            rng.randbytes(1) + bytes(7) + rng.randbytes(1) + bytes(7),
            NOW_MS,
            7,
            False,
            4,
            b"",
        )
        for _ in range(count)
    ]


def points(rng: random.Random, pushes: int, count: int, most_series: int) -> PointColumns:
    """Series often share their highest bits, and are often equal."""

    def drawn(below: int) -> np.ndarray:
        return np.array([rng.randrange(below) for _ in range(count)], np.int64)

    zero = np.zeros(count)
    series = drawn(most_series).astype(np.uint64) + np.uint64(1 << 63) * drawn(2).astype(np.uint64)
    return PointColumns(
        drawn(pushes), drawn(len(METRICS)), NOW_MS + drawn(2 * HOUR_MS), series, zero, zero, zero, zero, zero
    )


@pytest.mark.parametrize("most_series", [1, 3, 1 << 60])
def test_order_is_that_of_the_sorting_key(most_series: int) -> None:
    rng = random.Random(most_series)
    pushes = senders(rng, 40)
    columns = points(rng, len(pushes), 3_000, most_series)

    def key(n: int) -> tuple[object, ...]:
        push, ts_ms = pushes[columns.push[n]], int(columns.ts_ms[n])
        instance = push.client_instance_id[8:] + push.client_instance_id[:8]
        of_metric = push.connection.cluster, METRICS[columns.metric[n]], ts_ms // HOUR_MS
        return (*of_metric, push.connection.principal, push.client_id, instance, int(columns.series_id[n]), ts_ms)

    order, hours = key_order(columns, np.arange(len(METRICS)), push_ranks(pushes))
    keys = [key(n) for n in order.tolist()]
    assert keys == sorted(keys)
    assert sorted(order.tolist()) == list(range(3_000))
    assert hours == sorted({int(ts_ms) // HOUR_MS for ts_ms in columns.ts_ms})


def test_no_points_have_no_order_and_no_hours() -> None:
    order, hours = key_order(points(random.Random(1), 1, 0, 1), np.array([], np.int64), push_ranks([]))
    assert (order.tolist(), hours) == ([], [])
