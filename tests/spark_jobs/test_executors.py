"""deploy/spark/requirements.txt is what executors need: jobs are imported with these packages and Spark's own alone."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "deploy" / "spark" / "requirements.txt"
OF_SPARK = ("pyspark==4.3.0",)


def requirements() -> list[Requirement]:
    lines = REQUIREMENTS.read_text().splitlines()
    return [Requirement(line) for line in (*lines, *OF_SPARK) if line and not line.startswith("#")]


def with_dependencies(named: list[Requirement]) -> Iterator[importlib.metadata.Distribution]:
    """The distributions of these and of what they require."""
    waiting, seen = list(named), set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        key = (requirement.name.lower(), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(requirement.name)
        yield distribution
        for text in distribution.requires or ():
            dependency = Requirement(text)
            marker = dependency.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                waiting.append(dependency)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with these packages only, as links to those of the tests."""
    place = tmp_path_factory.mktemp("executor")
    venv.create(place, symlinks=True)
    packages = next((place / "lib").glob("python3.*/site-packages"))
    for distribution in with_dependencies(requirements()):
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return place / "bin" / "python"


def test_each_module_of_the_jobs_is_imported(python: Path) -> None:
    files = sorted((ROOT / "spark_jobs").glob("**/*.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    of_driver = ("spark_jobs.reports", "spark_jobs.cli")  # and what draws plots
    named = ", ".join(module for module in modules if not module.startswith(of_driver) and "__init__" not in module)
    done = subprocess.run(
        [python, "-c", f"import clickhouse_connect, {named}"],
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
