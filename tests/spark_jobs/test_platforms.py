"""What the jobs cannot run on is one line before the first task, or after it when only executors know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from typer.testing import CliRunner

from spark_jobs.arrow import arrow_schema
from spark_jobs.cli import JOBS, app, missing_on_executors
from spark_jobs.clickhouse import queries
from spark_jobs.jobs import client_inventory, team_report

ROOT = Path(__file__).parents[2]
JOB_FILES = [f"spark_jobs/jobs/{name.replace('-', '_')}.py" for name in JOBS]


def test_rows_have_the_types_that_pyspark_itself_would_choose() -> None:
    modules = (queries, client_inventory, team_report)
    schemas = [value for module in modules for value in vars(module).values() if isinstance(value, T.StructType)]
    assert len(schemas) >= 6
    nested = T.ArrayType(T.ArrayType(T.BooleanType(), containsNull=False))
    others = [T.StructField("of", nested, nullable=False), T.StructField("at", T.TimestampType())]
    for schema in [*schemas, T.StructType(others)]:
        assert arrow_schema(schema) == to_arrow_schema(schema, timezone="UTC")


@pytest.mark.parametrize("version", ["3.4.4", "3.3.2-amzn-0"])
def test_an_old_spark_is_refused_by_its_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    done = CliRunner().invoke(app, ["quota-headroom"])
    said = f"headroom: the jobs need Spark 3.5 or newer: PySpark is {version}\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    ("variable", "options", "said"),
    [
        ("SPARK_REMOTE", [], "SPARK_REMOTE"),
        ("SPARK_CONNECT_MODE_ENABLED", [], "SPARK_CONNECT_MODE_ENABLED"),
        ("SPARK_API_MODE", [], "SPARK_API_MODE"),
        ("", ["--master", "sc://spark:15002"], "--master sc://spark:15002"),
    ],
)
@pytest.mark.parametrize("job", ["quota-headroom", "team-report"])
def test_spark_connect_is_refused_by_what_asks_for_it(job: str, variable: str, options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [job, *options], env={variable: "connect"} if variable else {})
    line = f"headroom: the jobs cannot use Spark Connect ({said}): their driver is that of spark-submit, or local\n"
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", line)


def test_the_classic_mode_is_no_spark_connect() -> None:
    done = CliRunner().invoke(app, ["quota-headroom", "--since", "x"], env={"SPARK_API_MODE": "classic"})
    assert "cannot read the duration" in done.stderr


@pytest.mark.spark
def test_spark_connect_as_the_default_of_an_environment_changes_nothing() -> None:
    program = (
        "from spark_jobs.session import session\n"
        "with session('classic') as spark: print(spark.sparkContext.appName, spark.range(3).count())"
    )
    environment = {**os.environ, "SPARK_CONNECT_MODE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "classic 3\n"), done.stderr[-2000:]


def test_a_pyspark_without_a_jvm_is_refused(tmp_path: Path) -> None:
    """As pyspark-client is: the package without SparkContext."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "4.0.1"\n')
    command = [sys.executable, "-m", "headroom", "job", "client-inventory"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot use Spark Connect (the package pyspark-client)" in done.stderr


@pytest.mark.parametrize("file", JOB_FILES)
def test_a_job_sent_to_an_old_python_says_so_in_one_line(file: str) -> None:
    program = f"import runpy, sys; sys.hexversion = 0x03090000; runpy.run_path({file!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("headroom: Python 3.11 or newer is needed, in Spark's driver and in its executors: ")
    assert "is 3.9; set spark.pyspark.python" in done.stderr


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (  # PySpark 4
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark"
            " cannot run with different minor versions.",
            "the executors' Python is 3.9 and the driver's 3.11: ",
        ),
        (  # PySpark 3.5
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 10) than that in driver 3.11, PySpark"
            " cannot run with different minor versions.",
            "the executors' Python is 3.10 and the driver's 3.11: ",
        ),
        (
            "ModuleNotFoundError: No module named 'pyarrow'\n",
            "the executors' Python has no pyarrow: install deploy/spark",
        ),
        (
            "No module named 'clickhouse_connect.driver'",
            "the executors' Python has no clickhouse_connect.driver: install",
        ),
        (
            "ModuleNotFoundError: No module named 'spark_jobs'",
            "the executors' Python has no spark_jobs: pass Headroom's",
        ),
        ("ImportError: PyArrow >= 4.0.0 must be installed; however", "the executors' Python has no PyArrow >= 4.0.0: "),
        ("[PACKAGE_NOT_INSTALLED] Pandas >= 2.2.0 must be installed", "the executors' Python has no Pandas >= 2.2.0: "),
        (
            'IOException: Cannot run program "python3.12": error=2',
            "the executors have no python3.12: set spark.pyspark",
        ),
    ],
)
def test_what_executors_lack_is_one_line(reported: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise PySparkRuntimeError(f"An error occurred while calling o1.collect.\n{reported}\n\tat java.base/...")

    monkeypatch.setattr("spark_jobs.jobs.team_report.run", fail)
    done = CliRunner().invoke(app, ["team-report"])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"headroom: {said}")


def test_another_failure_stays_what_it_is() -> None:
    assert missing_on_executors("[DIVIDE_BY_ZERO] Division by zero.") is None
