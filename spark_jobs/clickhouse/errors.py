"""Finds a worker's exception in the exceptions of Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_jobs.clickhouse.client import SourceError


class NothingToReadError(SourceError):
    """There are no rows in the time that a job was asked about."""


@contextmanager
def source_errors() -> Iterator[None]:
    """Raises the SourceError of a Python worker in place of Spark's exception around it."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        found = re.search(rf"{SourceError.__name__}: (.+)", str(exc))
        if found is None:
            raise
        raise SourceError(found[1].strip()) from exc
