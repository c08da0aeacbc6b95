"""A Python of Spark's executors: with deploy/spark/requirements.txt, and pyspark and py4j as Spark brings them."""

import importlib.metadata
import venv
from collections.abc import Iterator
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).parents[2] / "deploy" / "spark" / "requirements.txt"


def requirements() -> list[Requirement]:
    lines = REQUIREMENTS.read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def make_executor_python(place: Path) -> Path:
    """The packages are links to those of the tests; returns the program."""
    venv.create(place, symlinks=True)
    packages = next((place / "lib").glob("python3.*/site-packages"))
    for distribution in _with_dependencies([*requirements(), Requirement(f"pyspark=={pyspark.__version__}")]):
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return place / "bin" / "python"


def _with_dependencies(named: list[Requirement]) -> Iterator[importlib.metadata.Distribution]:
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
