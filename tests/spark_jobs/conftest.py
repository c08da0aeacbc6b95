"""One Spark session shared by the tests of this directory: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("tests") as started:
        yield started
