"""Sizes of folders, files and functions, maps of packages, and words that the code no longer uses."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("exporters", "headroom", "quota_metrics", "spark_jobs", "telemetry")
LINES_OF_A_FILE = 300
FILES_OF_A_FOLDER = 17
LINES_OF_A_FUNCTION = 60
LONG_FUNCTIONS = {("headroom/cli/main.py", "serve"), ("spark_jobs/cli.py", "command")}  # a parameter for each flag
LARGE_FOLDERS = {
    "tests/kit": 24,
    "docs": 24,
    "docs/runbooks": 60,
    "deploy/clickhouse": 32,
}  # a page or file per subject
# Each had several meanings, or none that a reader of the field knows.
RETIRED = re.compile(r"\b(doors?|twins?|chores?|eased|loud|stuffed|HeldBack|farewell|in vain)\b", re.IGNORECASE)


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name.endswith(suffixes) and not name.endswith("_pb2.py")]


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def functions(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_files_are_short() -> None:
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in tracked(".py", ".sql") if file.exists()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_OF_A_FILE} == {}


def test_folders_are_small() -> None:
    counts = Counter(name_of(file.parent) for file in tracked(".py", ".sql", ".md") if file.name != "__init__.py")
    large = {name: files for name, files in counts.items() if files > LARGE_FOLDERS.get(name, FILES_OF_A_FOLDER)}
    assert large == {}


def test_functions_are_short() -> None:
    found = {name_of(file): dict(functions(file)) for file in tracked(".py") if file.exists()}
    long = {(file, name) for file, sizes in found.items() for name, size in sizes.items() if size > LINES_OF_A_FUNCTION}
    assert long <= LONG_FUNCTIONS
    own = [size for file, sizes in found.items() if file.startswith(PACKAGES) for size in sizes.values()]
    assert statistics.median(own) < 10


@pytest.mark.parametrize("package", PACKAGES)
def test_package_docstring_names_its_folders(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    folders = [init.parent.name for init in (ROOT / package).glob("*/__init__.py")]
    assert [folder for folder in folders if f"{folder}/" not in docstring] == []


def test_every_package_has_a_docstring() -> None:
    inits = [
        file for file in tracked("__init__.py") if name_of(file).startswith(PACKAGES) and "proto" not in file.parts
    ]
    assert [name_of(file) for file in inits if len(ast.get_docstring(ast.parse(file.read_text())) or "") < 40] == []


def test_retired_words_are_not_used() -> None:
    files = [file for file in tracked(".py", ".md", ".sql") if file.exists() and file != Path(__file__)]
    assert [f"{name_of(file)}: {found[0]}" for file in files if (found := RETIRED.search(file.read_text()))] == []
