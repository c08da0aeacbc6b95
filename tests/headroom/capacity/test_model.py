"""The capacity plan multiplies the workload by measured figures, and grows with each of them."""

import dataclasses
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from headroom.capacity.model import Workload, load_figures, plan
from headroom.cli.plan import app

FIGURES = load_figures()
WORK = Workload(clients=1_000_000, points=100, push_bytes=2_500, rate_bytes_s=1e9)


def values(work: Workload) -> dict[str, float]:
    return {line.name: line.value for line in plan(work, FIGURES)}


def test_pushes_and_points_per_second_of_a_million_clients() -> None:
    planned = values(WORK)
    assert planned["pushes"] == pytest.approx(16_666.7, abs=0.1)
    assert planned["points"] == pytest.approx(1_666_667, abs=1)


@pytest.mark.parametrize(
    ("change", "grows"),
    [
        ({"clients": 2_000_000}, "gateway memory"),
        ({"interval_s": 30.0}, "network cores"),
        ({"points": 200.0}, "storage worker cores"),
        ({"points": 200.0}, "clickhouse memory"),
        ({"push_bytes": 5_000.0}, "spool disk"),
        ({"rate_bytes_s": 2e9}, "kafka requests"),
        ({"rate_bytes_s": 2e9}, "network cores"),
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
    planned = values(Workload(clients=10))
    assert (planned["gateways"], planned["clickhouse shards"]) == (2, 1)
    assert planned["gateway.max_connections"] == planned["connections"]  # one gateway is away


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
