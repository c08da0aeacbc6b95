"""A stand-alone Spark cluster on this machine, and jobs submitted to it with their packages as a zip file."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

from spark_jobs.session import mapped
from tests.kit.serving import eventually

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
START_S = 200.0

# As a local session has them.
_JAVA_OPTIONS = " ".join(("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", *mapped()))
_TINY = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS}
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.ui.enabled": "false",
}


class Cluster(NamedTuple):
    """A running master with its workers; executors' work is below `directory`."""

    url: str
    directory: Path
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def running_cluster(directory: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """A master and `workers` of one core each, on ports that the system chooses."""
    with ExitStack() as stack:
        log = directory / "master.log"
        stack.enter_context(_daemon(log, "master.Master", "--port", "0"))
        url = _found(log, r"Starting Spark master at (spark://\S+)")
        processes = []
        for number in range(workers):
            log, options = directory / f"worker-{number}.log", ("-c", "1", "-m", "700m")
            work = ("-d", str(directory / f"worker-{number}"))
            processes.append(stack.enter_context(_daemon(log, "worker.Worker", *options, *work, url)))
            _found(log, r"(Successfully registered with master)")
        yield Cluster(url, directory, tuple(processes))


@contextmanager
def _daemon(log: Path, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    kind = f"org.apache.spark.deploy.{name}"
    command = [str(SPARK_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--webui-port", "0", *options]
    environment = {**_inherited(), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **_TINY}
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()  # a worker ends its executors


def _inherited() -> dict[str, str]:
    """The environment of the tests, in which only --py-files bring packages of ours to executors."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _found(log: Path, pattern: str) -> str:
    """Waits until the pattern matches the log and returns its group."""
    found = eventually(lambda: re.search(pattern, log.read_text(errors="replace")), bool, START_S)
    assert found is not None
    return found[1]


def submitted(
    directory: Path, script: Path, master: str, options: list[str], *, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """`spark-submit` of a copy of a job's file, with the packages by --py-files, in a process group of its own.
    `python`: of the executors."""
    packages = zipped(directory)
    job = directory / script.name
    job.write_bytes(script.read_bytes())
    settings = [part for name, value in EXECUTORS.items() for part in ("--conf", f"{name}={value}")]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--py-files", str(packages), *settings]
    environment = {
        **_inherited(),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with (directory / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [*command, str(job), *options],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def zipped(directory: Path) -> Path:
    """The packages that executors need, for --py-files; made once."""
    packages = directory / "headroom-jobs.zip"
    if not packages.exists():
        with zipfile.ZipFile(packages, "w") as archive:
            for package in ("spark_jobs", "quota_metrics", "exporters"):
                for file in (ROOT / package).rglob("*"):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, file.relative_to(ROOT))
    return packages
