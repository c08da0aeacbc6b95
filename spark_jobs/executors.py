"""What the executors' Python lacks, in one sentence, of what Spark reports when a Python worker failed."""

from __future__ import annotations

import re

_OURS = ("exporters", "quota_metrics", "spark_jobs")
_INSTALL = "install deploy/spark/requirements.txt there, or set spark.pyspark.python to a Python that has it"
# PySpark 3.5 writes versions as tuples.
_VERSIONS = re.compile(r"Python in worker has different version:? (\S.*?) than that in driver:? (\S.*?), PySpark")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_PACKAGE = re.compile(r"\b(\w+ >= [\w.]+) must be installed")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]*python[^"]*)"')


def missing_on_executors(text: str) -> str | None:
    """None if the text is about something else."""
    if versions := _VERSIONS.search(text):
        worker, driver = (".".join(re.findall(r"\d+", version)) for version in versions.groups())
        return (
            f"the executors' Python is {worker} and the driver's {driver}: Spark needs the same, 3.11 or newer;"
            " set spark.pyspark.python, and in a container of the executors its image"
        )
    if python := _NO_PYTHON.search(text):
        return f"the executors have no {python[1]}: set spark.pyspark.python to their Python, 3.11 or newer"
    if module := _NO_MODULE.search(text):
        if module[1].partition(".")[0] in _OURS:
            return f"the executors' Python has no {module[1]}: pass Headroom's wheel by --py-files"
        return f"the executors' Python has no {module[1]}: {_INSTALL}"
    if package := _NO_PACKAGE.search(text):
        return f"the executors' Python has no {package[1]}: {_INSTALL}"
    return None
