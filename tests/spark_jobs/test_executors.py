"""deploy/spark/requirements.txt is what executors need: jobs are imported with these packages and Spark's own alone.
A whole job with such executors is in tests/spark_jobs/jobs/test_cluster.py."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.kit.executor_python import make_executor_python, requirements

ROOT = Path(__file__).parents[2]


def test_each_module_of_the_jobs_is_imported(tmp_path: Path) -> None:
    files = sorted((ROOT / "spark_jobs").glob("**/*.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    of_driver = ("spark_jobs.reports", "spark_jobs.cli")  # and what draws plots
    named = ", ".join(module for module in modules if not module.startswith(of_driver) and "__init__" not in module)
    done = subprocess.run(
        [make_executor_python(tmp_path), "-c", f"import clickhouse_connect, {named}"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_requirements_are_those_of_the_project() -> None:
    """Executors have what the driver has: the same bounds, and no package that the jobs' wheel does not name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    ours = {requirement.name: str(requirement) for requirement in map(Requirement, named)}
    for requirement in requirements():
        assert ours[requirement.name] == str(requirement)
