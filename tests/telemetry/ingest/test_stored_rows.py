"""Every kind of record through the storage worker into a ClickHouse server, points in the order of its sorting key."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from exporters.model import Push, RecordKind
from exporters.spool.records import encode_instance, encode_rows, sender_bytes
from telemetry.decode.templates import PointColumns
from telemetry.ingest.arrow_tables import key_order, push_ranks
from telemetry.ingest.rollups import ROLL_UP, Slice
from tests.kit.clickhouse import QueriedStore, running_clickhouse
from tests.telemetry.decode.payloads import CONNECTION, NOW_MS
from tests.telemetry.ingest.conftest import FACTS, LIMIT, TOPIC, USAGE, Bench

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


def _stored(directory: Path, store: QueriedStore) -> dict[str, list[tuple[Any, ...]]]:
    for (table,) in store.query(
        "SELECT name FROM system.tables WHERE database = 'headroom' AND create_table_query LIKE '% TTL %'"
    ):
        store.query(f"ALTER TABLE headroom.{table} REMOVE TTL")  # the pushes are of 2026
    bench = Bench(directory / "spool")
    bench.store = store  # type: ignore[assignment] # the real one
    bench.restart()
    bench.push()
    bench.push(_every_kind(), codec=0)
    bench.push(b"rubbish")
    bench.append(RecordKind.INSTANCE, encode_instance(NOW_MS, bytes(16), sender_bytes(CONNECTION, "app-2")))
    bench.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE]))
    bench.append(RecordKind.LIMITS, encode_rows(RecordKind.LIMITS, [LIMIT]))
    for sampled in (TOPIC, TOPIC._replace(direction="out"), TOPIC._replace(sample=0.1, gateway_id="other")):
        bench.append(RecordKind.TOPICS, encode_rows(RecordKind.TOPICS, [sampled]))
    changed = FACTS._replace(valid_from_ms=NOW_MS + 1, quota_window_num=21)
    bench.append(RecordKind.FACTS, encode_rows(RecordKind.FACTS, [FACTS, changed]))
    assert bench.step() == 10
    assert bench.balance() == (9, 1, 0)

    rows = store.query
    store.command(ROLL_UP, Slice(NOW_MS // 3_600_000, 0, 1).parameters())
    stored = {
        "view": rows(
            "SELECT toString(client_instance_id), value, toString(kind), toString(temporality),"
            " attributes['node_id'], software_version, toUnixTimestamp64Milli(ts) FROM headroom.client_metrics"
            " WHERE metric = 'exact'"
        ),
        "hour": rows(
            "SELECT sum, last, count, points, toString(temporality) FROM headroom.client_metrics_1h"
            " WHERE metric = 'exact'"
        ),
        "exact": rows("SELECT int_value FROM headroom.points WHERE metric = 'exact'"),
        "points": rows("SELECT count(), countIf(isNaN(value)) > 0 FROM headroom.points"),
        "histograms": rows(
            "SELECT toString(kind), count, sum, min, bounds, bucket_counts, scale, pos_counts,"
            " arrayMap(q -> (q.1, q.2), quantiles) FROM headroom.client_histograms ORDER BY kind"
        ),
        "pushes": rows("SELECT error_code, compression, points FROM headroom.pushes ORDER BY points, error_code"),
        "instances": rows("SELECT client_id, pushes, points FROM headroom.client_instances FINAL ORDER BY client_id"),
        "usage": rows("SELECT client_id, bytes, rate, toString(source), requests FROM headroom.quota_usage"),
        "facts": rows("SELECT * EXCEPT (valid_from) FROM headroom.cluster_facts_now"),
        "topics": rows(
            "SELECT toUnixTimestamp64Milli(window_start), window_s, user, client_id, topic, toString(direction), bytes,"
            " sampled_frames FROM headroom.topic_usage ORDER BY direction"
        ),
        "limits": rows("SELECT client_id, value FROM headroom.quota_limits"),
    }
    described = bench.ingester.counts.series_written
    for now_ms in (NOW_MS, NOW_MS + 3_600_000):  # an hour later they are described again
        bench.restart()
        bench.ingester.recall_series(now_ms)
        bench.push()
        bench.step(now_ms)
        stored[f"described at {now_ms - NOW_MS}"] = [(bench.ingester.counts.series_written - described,)]
    return stored


def _every_kind() -> bytes:
    ns = NOW_MS * 1_000_000
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    point = metrics.add(name="exact").sum.data_points.add(as_int=2**53 + 1, time_unix_nano=ns)
    point.attributes.add(key="node.id").value.int_value = 3
    metrics[0].sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    metrics.add(name="h").histogram.data_points.add(
        time_unix_nano=ns, count=2**64 - 1, bucket_counts=[1, 2], explicit_bounds=[0.5]
    )
    exponential = metrics.add(name="e").exponential_histogram.data_points.add(time_unix_nano=ns, sum=0.0, scale=-2)
    exponential.positive.bucket_counts.append(7)
    metrics.add(name="q").summary.data_points.add(time_unix_nano=ns, sum=1.0).quantile_values.add(
        quantile=0.5, value=2.0
    )
    return data.SerializeToString()


@pytest.mark.clickhouse
def test_every_record_kind_is_stored_in_a_server(tmp_path: Path) -> None:
    many, rng = Bench(tmp_path / "many"), random.Random(11)
    for n in range(30):
        connection = replace(CONNECTION, principal=rng.choice(["p", "pq"]))
        many.push(connection=connection, client_id=f"app-{n % 12}", client_instance_id=rng.randbytes(16))
    assert many.step() == 30
    [sortable] = many.store.tables["points"].values()
    with running_clickhouse(tmp_path / "clickhouse") as clickhouse:
        stored = _stored(tmp_path, clickhouse.store)
        before = _blocks_already_sorted(clickhouse.store)
        clickhouse.store.insert("points", sortable, token="many")
        assert _blocks_already_sorted(clickhouse.store) == before + 1
    assert stored["view"] == [
        ("00010203-0405-0607-0809-0a0b0c0d0e0f", float(2**53 + 1), "sum", "cumulative", "3", "4.3.1", NOW_MS)
    ]
    assert stored["hour"] == [(float(2**53), float(2**53), 1, 1, "cumulative")]
    assert stored["exact"] == [(2**53 + 1,)]
    assert stored["points"] == [(109, 1)]
    assert [tuple(map(_plain, row)) for row in stored["histograms"]] == [
        ("histogram", 2**64 - 1, None, None, [0.5], [1, 2], 0, [], []),
        ("exp_histogram", 0, 0.0, None, [], [], -2, [7], []),
        ("summary", 0, 1.0, None, [], [], 0, [], [(0.5, 2.0)]),
    ]
    assert stored["pushes"] == [(87, "zstd", 0), (0, "none", 4), (0, "zstd", 108)]
    assert stored["instances"] == [("app-1", 2, 112), ("app-2", 0, 0)]
    assert stored["usage"] == [("app-1", 1000, 100.5, "gateway", 7)]
    assert stored["facts"] == [("c", 1, "4.3", 21, 1000, 21_000, "x.Y", 500, FACTS.configs)]
    minute = (NOW_MS // 60_000 - 1) * 60_000, 60, "alice", "app-1", "orders"
    assert stored["topics"] == [(*minute, "in", 33_000.0, 6), (*minute, "out", 30_000.0, 3)]
    assert stored["limits"] == [("<default>", None)]
    assert stored["described at 0"] == [(0,)]
    assert stored["described at 3600000"] == [(108,)]


def _blocks_already_sorted(store: QueriedStore) -> int:
    """Blocks of inserts that the server did not need to sort, since its start."""
    sql = "SELECT sum(value) FROM system.events WHERE event = 'MergeTreeDataWriterBlocksAlreadySorted'"
    return int(store.query(sql)[0][0])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
