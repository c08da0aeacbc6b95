"""Some of the fleets that `python -m tests.fleets 2000` compares."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.fleets.differences import compared
from tests.kit.clickhouse import RunningClickHouse


@pytest.mark.spark
@pytest.mark.clickhouse
def test_every_path_computes_what_the_reference_does(spark: SparkSession, clickhouse: RunningClickHouse) -> None:
    assert compared(clickhouse, seed=1, cases=60) == []
