"""Spark's Java: version requirements, a one-line error when Java is missing, and the class data archive.

`make setup` writes the archive, so that all Spark tests run with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_jobs.session import archive, java_major, mapped, parallelism, settings

_START = """
from spark_jobs.session import JavaError, session
try:
    with session("test") as spark:
        print("started", spark.range(10).count())
except JavaError as exc:
    print(exc)
"""


def start(java_home: Path) -> str:
    return start_in(java_home, {"JAVA_HOME": str(java_home)})


def start_in(directory: Path, environment: dict[str, str]) -> str:
    """Runs a separate process and returns its output; checks that it prints nothing else and leaves no files."""
    before = sorted(directory.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", _START],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    assert done.stderr == ""
    assert sorted(directory.iterdir()) == before
    return done.stdout.strip()


@pytest.mark.spark
def test_session_starts_and_stops_without_output(tmp_path: Path) -> None:
    assert start_in(tmp_path, {}) == "started 10"


@pytest.mark.spark
def test_batches_of_python_workers_are_small(spark: SparkSession) -> None:
    """In larger ones Spark 4.3 spends more CPU on counting bytes than on all else."""

    def sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch([pa.array([batch.num_rows])], names=["rows"])

    rows = [row["rows"] for row in spark.range(0, 1200, 1, 1).mapInArrow(sizes, "rows long").collect()]
    assert (sum(rows), max(rows)) == (1200, 500)


def fake_java(java_home: Path, script: str) -> Path:
    java = java_home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def test_java_major_parses_version_banners() -> None:
    banners = {
        'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment': 17,
        'java version "1.8.0_392"': 8,
        'Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "25.0.1"': 25,
        "The operation couldn't be completed. Unable to locate a Java Runtime.": 0,
    }
    assert {banner: java_major(banner) for banner in banners} == banners


def test_missing_java_is_a_one_line_error(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    assert start(tmp_path) == f"no {java} found: Spark needs Java 17 or newer (on PATH, or set JAVA_HOME)"


def test_old_java_is_a_one_line_error(tmp_path: Path) -> None:
    java = fake_java(tmp_path, """echo 'java version "1.8.0_392"' >&2""")
    assert start(tmp_path) == f"{java} is version 8: Spark needs Java 17 or newer"


def test_failing_java_is_a_one_line_error(tmp_path: Path) -> None:
    fake_java(
        tmp_path, """case "$1" in -version) echo 'openjdk version "17.0.1"' >&2;; *) echo no room >&2; exit 1;; esac"""
    )
    assert start(tmp_path) == "cannot start Spark: no room"


@pytest.mark.parametrize(("cores", "gib", "tasks"), [(128, 256, 8), (4, 64, 4), (128, 2, 4), (0.5, 4, 1), (2, 0.25, 1)])
def test_a_local_session_has_no_more_tasks_than_cores_and_memory(
    cores: float, gib: float, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporters.machine.available_cores", lambda _: cores)
    monkeypatch.setattr("exporters.machine.available_memory", lambda _: int(gib * (1 << 30)))
    assert settings("")["spark.master"] == f"local[{tasks}]"
    assert settings("local[*]")["spark.master"] == "local[*]"


def test_executors_elsewhere_can_reach_the_driver() -> None:
    elsewhere, here = settings("spark://master:7077"), settings("")
    assert elsewhere["spark.master"] == "spark://master:7077"
    assert "spark.driver.host" not in elsewhere
    assert here["spark.driver.host"] == "127.0.0.1"
    assert settings("local[1]") == {
        name: value for name, value in (here | {"spark.master": "local[1]"}).items() if "daemon" not in name
    }


@pytest.mark.parametrize(
    ("conf", "there", "tasks"),
    [
        ({"spark.master": "spark://here:7077"}, 2, 200),  # a stand-alone cluster does not wait for its executors
        ({"spark.master": "spark://here:7077", "spark.cores.max": "12"}, 2, 12),
        ({"spark.master": "spark://here:7077"}, 640, 640),
        ({"spark.master": "k8s://here:6443"}, 16, 16),
        ({}, 16, 16),
        ({}, 0, 1),
        ({"spark.dynamicAllocation.enabled": "false"}, 2, 2),
        ({"spark.dynamicAllocation.enabled": "true"}, 2, 200),  # no executor has come yet
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "infinity"}, 2, 200),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "5",
                "spark.executor.cores": "4",
            },
            2,
            20,
        ),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "1000"}, 2, 200),
        ({"spark.dynamicAllocation.enabled": "true"}, 640, 640),
    ],
)
def test_tasks_are_not_counted_before_executors_have_come(conf: dict[str, str], there: int, tasks: int) -> None:
    of_session = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    master = of_session.get("spark.master", "yarn")
    context = SimpleNamespace(defaultParallelism=there, master=master, getConf=lambda: of_session)
    assert parallelism(cast(SparkContext, context)) == tasks


def test_an_archive_is_mapped_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert mapped() == []
    archive().parent.mkdir(parents=True)
    archive().write_bytes(b"classes")
    assert mapped() == [f"-XX:SharedArchiveFile={archive()}"]


def test_another_java_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    here = archive()
    monkeypatch.setenv("JAVA_HOME", "/elsewhere")
    assert archive() != here
    assert archive().parent == here.parent


def test_an_option_of_the_archive_cannot_contain_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a b"))
    archive().parent.mkdir(parents=True)
    archive().write_bytes(b"classes")
    assert mapped() == []
