"""Finds a Python worker's exception inside Spark's exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_jobs.clickhouse.client import SourceError


class NothingToReadError(SourceError):
    """The requested range has no rows."""


@contextmanager
def source_errors() -> Iterator[None]:
    """Re-raises a Python worker's SourceError instead of the Spark exception that wraps it."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        found = re.search(rf"{SourceError.__name__}: (.+)", str(exc))
        if found is None:
            raise
        raise SourceError(found[1].strip()) from exc
