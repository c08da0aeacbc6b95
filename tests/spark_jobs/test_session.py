"""Spark's Java: version requirements, a one-line error when Java is missing, the class data archive, and the progress
line of a session.

`make setup` writes the archive, so that all Spark tests run with it."""

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs.session import archive, java_version, main, mapped, parallelism, progress, settings

_START = """
from spark_jobs.session import JavaError, session
try:
    with session("test") as spark:
        print("started", spark.sparkContext.range(10).count())
except JavaError as exc:
    print(exc)
"""


def start_in(directory: Path, environment: dict[str, str]) -> str:
    """Runs a separate process and returns its output; checks that it prints nothing else and leaves no files."""
    before = sorted(directory.iterdir())
    done = subprocess.run(
        [sys.executable, "-P", "-c", _START],
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
@pytest.mark.parametrize("environment", [{}, {"SPARK_CONNECT_MODE": "1"}], ids=["bare", "Spark Connect as default"])
def test_session_starts_and_stops_without_output(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit")  # Python workers import the library's
    assert start_in(tmp_path, environment) == "started 10"


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


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "25.0.1"', 25),
        ("The operation could not be completed. Unable to locate a Java Runtime.", 0),
    ],
)
def test_version_of_java_is_that_of_its_banner(tmp_path: Path, banner: str, version: int) -> None:
    assert java_version(str(fake_java(tmp_path, f"echo '{banner}' >&2"))) == version


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "no {java} found: Spark needs Java 17 or newer (on PATH, or set JAVA_HOME)"),
        ("""echo 'java version "1.8.0_392"' >&2""", "{java} is version 8: Spark needs Java 17 or newer"),
        (
            """case "$1" in -version) echo 'openjdk version "17.0.1"' >&2;; *) echo no room >&2; exit 1;; esac""",
            "cannot start Spark: no room",
        ),
    ],
    ids=["missing", "old", "failing"],
)
def test_java_that_does_not_do_is_a_one_line_error(tmp_path: Path, script: str, said: str) -> None:
    java = fake_java(tmp_path, script) if script else tmp_path / "bin" / "java"
    assert start_in(tmp_path, {"JAVA_HOME": str(tmp_path)}) == said.format(java=java)


def test_another_spark_than_pysparks_is_named(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    said = start_in(tmp_path, {"SPARK_HOME": str(tmp_path)})
    assert said.startswith(f"SPARK_HOME has spark-core_2.12-3.5.1.jar, PySpark is {pyspark.__version__}: unset it")


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
        ({"spark.master": "spark://here:7077"}, 640, 640),
        ({"spark.master": "k8s://here:6443"}, 16, 16),
        ({}, 16, 16),
        ({}, 0, 1),
        ({"spark.dynamicAllocation.enabled": "false"}, 2, 2),
        ({"spark.dynamicAllocation.enabled": "true"}, 2, 200),  # no executor has come yet
        ({"spark.dynamicAllocation.enabled": "true"}, 640, 640),
    ],
)
def test_tasks_are_not_counted_before_executors_have_come(conf: dict[str, str], there: int, tasks: int) -> None:
    of_session = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    master = of_session.get("spark.master", "yarn")
    context = SimpleNamespace(defaultParallelism=there, master=master, getConf=lambda: of_session)
    assert parallelism(cast(SparkContext, context)) == tasks


@pytest.mark.parametrize("name", ["prefix", "a b"])
def test_an_archive_is_mapped_where_it_exists_below_a_path_without_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / name))
    assert mapped() == []
    archive().parent.mkdir(parents=True)
    archive().write_bytes(b"classes")
    assert mapped() == ([] if " " in name else [f"-XX:SharedArchiveFile={archive()}"])


def test_an_archive_stays_where_java_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    archive().parent.mkdir(parents=True)
    archive().write_bytes(b"classes")
    assert main() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("headroom: no class archive: ")
    assert "/gone/bin/java found: Spark needs Java 17 or newer" in line
    assert archive().read_bytes() == b"classes"


def test_another_java_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    here = archive()
    monkeypatch.setenv("JAVA_HOME", "/elsewhere")
    assert archive() != here
    assert archive().parent == here.parent


@pytest.mark.spark
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


@pytest.mark.spark
def test_progress_is_not_written_without_a_terminal(spark: SparkSession) -> None:
    output = io.StringIO()
    with progress("job", spark.sparkContext, Console(file=output)):
        spark.range(1).collect()
    assert output.getvalue() == ""
