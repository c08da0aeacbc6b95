"""The progress line, with a real session whose job blocks until the test has checked it."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.session import progress

pytestmark = pytest.mark.spark


def test_progress_is_shown_on_a_terminal(spark: SparkSession, tmp_path: Path) -> None:
    output = io.StringIO()
    release = tmp_path / "release"

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not release.exists():
            time.sleep(0.05)
        yield from batches

    def look() -> None:
        while "of 1 tasks done" not in output.getvalue() and not stopped.wait(0.05):
            pass
        release.touch()

    stopped = threading.Event()
    watcher = threading.Thread(target=look)
    watcher.start()
    limit = threading.Timer(120, stopped.set)
    limit.start()
    with progress("job", spark.sparkContext, Console(file=output, force_terminal=True)):
        spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect()
    limit.cancel()
    watcher.join()
    assert "job: stage" in output.getvalue()
    assert "0 of 1 tasks done" in output.getvalue()


def test_progress_is_not_written_without_a_terminal(spark: SparkSession) -> None:
    output = io.StringIO()
    with progress("job", spark.sparkContext, Console(file=output)):
        spark.range(1).collect()
    assert output.getvalue() == ""
