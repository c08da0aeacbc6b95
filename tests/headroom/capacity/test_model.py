"""The capacity plan multiplies the workload by measured figures, and grows with each of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from headroom.capacity.figures import load_figures
from headroom.capacity.model import (
    Workload,
    clickhouse_cores,
    client_memory,
    merges_of_a_row,
    network_cores,
    plan,
    rollup_cores,
    rollup_slices,
    row_bytes,
    worker_cores,
)
from headroom.cli.plan import app
from telemetry.ingest.rollups import slices

FIGURES = load_figures()
WORK = Workload(clients=1_000_000, points=100, push_bytes=2_500, rate_bytes_s=1e9)
BATCHES_A_DAY = 86_400 * WORK.rows_s / 1_000_000  # a batch has a million rows at most


def values(work: Workload) -> dict[str, float]:
    return {line.name: line.value for line in plan(work, FIGURES)}


def test_pushes_and_points_per_second_of_a_million_clients() -> None:
    found = values(WORK)
    assert found["pushes"] == pytest.approx(16_666.7, abs=0.1)
    assert found["points"] == pytest.approx(1_666_667, abs=1)


def test_network_cores_add_up_pushes_and_requests() -> None:
    quiet = dataclasses.replace(WORK, rate_bytes_s=0.0)
    silent = dataclasses.replace(WORK, interval_s=1e12)
    both = network_cores(quiet, FIGURES) + network_cores(silent, FIGURES)
    assert network_cores(WORK, FIGURES) == pytest.approx(both, rel=1e-6)


def test_loop_turns_are_shared_by_pushes_under_load() -> None:
    push_us = FIGURES.push_us + FIGURES.push_byte_us * WORK.push_bytes

    def us_a_push(clients: int, processes: int = 1) -> float:
        work = Workload(clients=clients, interval_s=1.0)
        return network_cores(work, FIGURES, processes) / clients * 1e6

    assert us_a_push(1) == pytest.approx(push_us + FIGURES.turn_us, rel=0.01)
    assert us_a_push(1_000_000) == pytest.approx(push_us, rel=0.05)
    assert us_a_push(1000, processes=1000) == pytest.approx(us_a_push(1))


def test_batch_cost_does_not_depend_on_size() -> None:
    one = Workload(clients=1, interval_s=1e6, points=1, brokers=0)
    for cores, batch_us in ((worker_cores, FIGURES.batch_us), (clickhouse_cores, FIGURES.store_batch_us)):
        assert cores(one, FIGURES) == pytest.approx(batch_us / 1e6, rel=0.01)
        assert cores(one, FIGURES, gateways=3) == pytest.approx(3 * batch_us / 1e6, rel=0.01)


def test_many_points_are_written_every_other_second() -> None:
    few, many = (Workload(clients=10_000, interval_s=1.0, points=points, brokers=0) for points in (9.9, 10.1))
    few, many = (dataclasses.replace(work, described_s=0.0) for work in (few, many))
    more = (many.rows_s - few.rows_s) * FIGURES.point_us - FIGURES.batch_us / 2
    assert worker_cores(many, FIGURES) - worker_cores(few, FIGURES) == pytest.approx(more / 1e6)


def test_described_series_add_cost_once_an_hour() -> None:
    none = dataclasses.replace(WORK, described_s=0.0)
    more = dataclasses.replace(WORK, described_s=1e6)
    store_series_us = FIGURES.store_series_us + merges_of_a_row(FIGURES, BATCHES_A_DAY) * FIGURES.merge_series_us
    assert worker_cores(more, FIGURES) - worker_cores(none, FIGURES) == pytest.approx(FIGURES.series_us)
    assert clickhouse_cores(more, FIGURES) - clickhouse_cores(none, FIGURES) == pytest.approx(store_series_us)
    assert WORK.series_s == WORK.clients * WORK.points / 3600


def test_rows_are_merged_once_for_each_level_of_parts() -> None:
    merges = [merges_of_a_row(FIGURES, FIGURES.merge_parts**level) for level in range(4)]
    assert merges == pytest.approx([0, 1, 2, 3])
    few, day = dataclasses.replace(WORK, batches=FIGURES.merge_parts), dataclasses.replace(WORK, batches=None)
    assert clickhouse_cores(day, FIGURES) > clickhouse_cores(few, FIGURES)
    assert clickhouse_cores(dataclasses.replace(day, batches=BATCHES_A_DAY), FIGURES) == clickhouse_cores(day, FIGURES)


def test_rollup_cost_is_limited_to_a_share_of_the_cores() -> None:
    few = Workload(clients=60, points=100)
    series = 60 * 100 * FIGURES.rollup_series_us * 12 / 3600
    assert rollup_cores(few, FIGURES, 8) == pytest.approx((100 * FIGURES.rollup_row_us * 6.5 + series) / 1e6)
    assert rollup_cores(WORK, FIGURES, 8) == pytest.approx(0.4)


def test_row_size_decreases_with_rows_per_series() -> None:
    assert row_bytes(FIGURES, 1) == FIGURES.row_bytes + FIGURES.series_hour_bytes
    assert row_bytes(FIGURES, 360) == pytest.approx(FIGURES.row_bytes + FIGURES.series_hour_bytes / 360)


def memory(clients: int, connections: int) -> float:
    return client_memory(Workload(clients), FIGURES, connections)


def test_heads_are_remembered_up_to_a_limit_beside_one_a_connection() -> None:
    assert memory(50_000, 0) == 50_000 * (FIGURES.instance_bytes + FIGURES.head_bytes)
    assert memory(1_000_000, 0) == 1_000_000 * FIGURES.instance_bytes + 65_536 * FIGURES.head_bytes
    connected = memory(1_000_000, 1_000) - 1_000 * FIGURES.connection_bytes / 2
    assert connected - memory(1_000_000, 0) == pytest.approx(1_000 * FIGURES.head_bytes)


def test_instances_that_subscribe_cost_more() -> None:
    coming = dataclasses.replace(WORK, subscribing_s=1_000.0)
    assert worker_cores(coming, FIGURES) - worker_cores(WORK, FIGURES) == pytest.approx(FIGURES.subscription_us / 1e3)
    assert clickhouse_cores(coming, FIGURES) > clickhouse_cores(WORK, FIGURES)


def test_pushes_of_unknown_heads_cost_more() -> None:
    first = dataclasses.replace(WORK, unknown_heads=1.0)
    more = network_cores(first, FIGURES) - network_cores(WORK, FIGURES)
    assert more == pytest.approx(WORK.pushes_s * FIGURES.unknown_head_us / 1e6)


@pytest.mark.parametrize(
    ("change", "grows"),
    [
        ({"clients": 2_000_000}, "gateway memory"),
        ({"interval_s": 30.0}, "network cores"),
        ({"points": 200.0}, "storage worker cores"),
        ({"points": 200.0}, "clickhouse memory"),
        ({"push_bytes": 5_000.0}, "spool disk"),
        ({"rate_bytes_s": 2e9}, "kafka requests"),
        ({"brokers": 6}, "connections"),
        ({"retention_days": 60.0}, "clickhouse disk"),
        ({"replicas": 3}, "clickhouse cores"),
        ({"outage_h": 8.0}, "spool disk"),
        ({"names": 1_000_000}, "spark cores"),
        ({"names": 1_000_000}, "clickhouse disk for minutes"),
    ],
)
def test_more_work_needs_more_resources(change: dict[str, Any], grows: str) -> None:
    assert values(dataclasses.replace(WORK, **change))[grows] > values(WORK)[grows]


def test_small_workload_gets_two_gateways_and_one_shard() -> None:
    found = values(Workload(clients=10))
    assert (found["gateways"], found["clickhouse shards"]) == (2, 1)


def test_command_prints_a_table_or_json() -> None:
    printed = CliRunner().invoke(app, ["--clients", "1000000", "--rate", "1e9"])
    assert printed.exit_code == 0, printed.output
    assert "gateways" in printed.output
    assert FIGURES.measured in printed.output
    read = json.loads(CliRunner().invoke(app, ["--clients", "1000000", "--output", "json"]).stdout)
    assert {line["name"] for line in read["plan"]} == set(values(WORK))
    assert read["figures"]["push_us"] == FIGURES.push_us


def test_command_refuses_invalid_arguments() -> None:
    assert CliRunner().invoke(app, ["--clients", "0"]).exit_code == 2
    assert CliRunner().invoke(app, []).exit_code == 2


def test_rollups_are_planned_in_as_many_slices_as_they_are_computed_in() -> None:
    for series in (0, 1, 1_000_000, 1_000_001, 12_000_000):
        assert rollup_slices(series) == len(slices(0, series))
