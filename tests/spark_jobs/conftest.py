"""One Spark session and one ClickHouse server shared by the tests of this directory: both take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("tests") as started:
        yield started


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running
