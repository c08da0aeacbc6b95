"""Some of the fleets that `python -m tests.fleets 2000` compares."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.fleets.differences import compared
from tests.kit.clickhouse import RunningClickHouse


@pytest.mark.spark
@pytest.mark.clickhouse
@pytest.mark.parametrize(("seed", "cases"), [(1, 60), pytest.param(2, 240, marks=pytest.mark.release)])
def test_every_path_computes_what_the_reference_does(
    spark: SparkSession, clickhouse: RunningClickHouse, seed: int, cases: int
) -> None:
    assert compared(clickhouse, seed, cases) == []
