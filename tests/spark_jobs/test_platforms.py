"""What the jobs cannot run on is one line before the first task, or after it when only executors know. Executors need
deploy/spark/requirements.txt: jobs are imported with these packages and Spark's own alone (a whole job with such
executors is in tests/spark_jobs/jobs/test_cluster.py). The daemon of Spark's Python workers forks: what it imports must
not start threads."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from pyspark.errors import PySparkRuntimeError
from typer.testing import CliRunner

from spark_jobs.cli import JOBS, app, missing_on_executors
from tests.kit.executor_python import make_executor_python, requirements

ROOT = Path(__file__).parents[2]
JOB_FILES = [f"spark_jobs/jobs/{name.replace('-', '_')}.py" for name in JOBS]


def run_python(
    *arguments: str, python: str = sys.executable, path: str = str(ROOT)
) -> subprocess.CompletedProcess[str]:
    """In the checkout."""
    argv, environment = [python, *arguments], {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


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


def test_a_pyspark_without_a_jvm_is_refused(tmp_path: Path) -> None:
    """As pyspark-client is: the package without SparkContext."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "4.0.1"\n')
    done = run_python("-m", "headroom", "job", "client-inventory", path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot use Spark Connect (the package pyspark-client)" in done.stderr


@pytest.mark.parametrize("file", JOB_FILES)
def test_a_job_sent_to_an_old_python_says_so_in_one_line(file: str) -> None:
    program = f"import runpy, sys; sys.hexversion = 0x03090000; runpy.run_path({file!r})"
    done = run_python("-c", program)
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
            "ModuleNotFoundError: No module named 'spark_jobs'",
            "the executors' Python has no spark_jobs: pass Headroom's",
        ),
        ("ImportError: PyArrow >= 4.0.0 must be installed; however", "the executors' Python has no PyArrow >= 4.0.0: "),
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


def test_each_module_of_the_jobs_is_imported(tmp_path: Path) -> None:
    files = sorted((ROOT / "spark_jobs").glob("**/*.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    of_driver = ("spark_jobs.reports", "spark_jobs.cli")  # and what draws plots
    named = ", ".join(module for module in modules if not module.startswith(of_driver) and "__init__" not in module)
    done = run_python("-c", f"import clickhouse_connect, {named}", python=str(make_executor_python(tmp_path)))
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_requirements_are_those_of_the_project() -> None:
    """Executors have what the driver has: the same bounds, and no package that the jobs' wheel does not name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    ours = {requirement.name: str(requirement) for requirement in map(Requirement, named)}
    for requirement in requirements():
        assert ours[requirement.name] == str(requirement)


_IMPORT = """
import json, os, sys, threading
import spark_jobs.worker_daemon
heavy = [name for name in ("numpy", "pandas", "pyarrow") if name in sys.modules]
ready = [name for name in ("clickhouse_connect", "pyspark.worker") if name in sys.modules]
tasks = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
print(json.dumps([heavy, ready, tasks]))
"""


def test_what_the_daemon_of_workers_imports_starts_no_threads() -> None:
    done = run_python("-c", _IMPORT)
    assert json.loads(done.stdout) == [[], ["clickhouse_connect", "pyspark.worker"], 1]
