"""Sizes of folders, files and functions, and maps of packages."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatch_build import hot_modules

ROOT = Path(__file__).parent.parent
PACKAGES = ("exporters", "headroom", "quota_metrics", "spark_jobs", "telemetry")
LINES_OF_A_FILE = 450  # more than one idea, probably
FILES_OF_A_FOLDER = 17
LINES_OF_A_FUNCTION = 60
LONG_FUNCTIONS = {("headroom/cli/main.py", "serve")}  # a parameter for each flag
LARGE_FOLDERS = {
    "tests/kit": 39,
    "docs": 28,
    "docs/runbooks": 60,
}  # a page or file per subject


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name.endswith(suffixes) and not name.endswith("_pb2.py")]


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_files_are_short() -> None:
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in tracked(".py", ".sql") if file.exists()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_OF_A_FILE} == {}


def test_folders_are_small() -> None:
    counts = Counter(name_of(file.parent) for file in tracked(".py", ".sql", ".md") if file.name != "__init__.py")
    large = {name: files for name, files in counts.items() if files > LARGE_FOLDERS.get(name, FILES_OF_A_FOLDER)}
    assert large == {}


def test_functions_are_short() -> None:
    long = set()
    for file in [file for file in tracked(".py") if file.exists()]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= LINES_OF_A_FUNCTION:
                    long.add((name_of(file), node.name))
    assert long <= LONG_FUNCTIONS


def test_children_import_nothing_of_the_working_directory() -> None:
    """With -m or -c, but without -P, a file queue.py in it would be taken for the library's."""
    unsafe = re.compile(r'sys\.executable,\s*"-[mc]"')
    product = [file for file in tracked(".py") if name_of(file).startswith(PACKAGES)]
    assert [name_of(file) for file in product if unsafe.search(file.read_text())] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_docstring_names_its_folders(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    folders = [init.parent.name for init in (ROOT / package).glob("*/__init__.py")]
    assert [folder for folder in folders if f"{folder}/" not in docstring] == []


def test_package_docstring_names_its_files() -> None:
    """There is one, each file that it names exists, and it names each file of the package."""
    wrong = {}
    for init in tracked("__init__.py"):
        if not name_of(init).startswith(PACKAGES) or "proto" in init.parts:
            continue
        docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
        named = {name for name in re.findall(r"[\w/]+\.(?:py|sql)\b", docstring) if "docs/" not in name}
        files = {file.name for file in init.parent.glob("*.py")} - {"__init__.py", "__main__.py"}
        gone = {name for name in named if not (init.parent / name).exists()}
        if gone or not files <= named or len(docstring) < 40:
            wrong[name_of(init)] = (gone, files - named)
    assert wrong == {}


def test_statements_name_no_database() -> None:
    """The one client decides which database a statement concerns."""
    named = re.compile(r"\b(?:FROM|INTO|JOIN|TABLE|VIEW)\s+headroom\.|\bheadroom\.\{")
    files = [file for file in tracked(".py") if name_of(file).startswith(PACKAGES) and file.exists()]
    assert [name_of(file) for file in files if named.search(file.read_text())] == []


def test_compiled_modules_are_tested_compiled() -> None:
    """`make test-compiled` runs the tests of every package that has compiled modules."""
    listed = re.search(r"^COMPILED_TESTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed
    folders = [Path(name).relative_to("tests") for name in listed[1].split()]
    assert all((ROOT / "tests" / folder).is_dir() for folder in folders)
    packages = {Path(module).parent for module in hot_modules()} - {Path("headroom")}  # of headroom only the clock
    assert [str(package) for package in packages if not any(package.is_relative_to(folder) for folder in folders)] == []


def imported(file: Path) -> Iterator[str]:
    """Modules that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_tests_share_by_the_kit_only() -> None:
    """What two test files need is in tests/kit, or in a file beside them that is not a test; benches are no kit."""
    files = {name_of(file): file for file in tracked(".py") if file.exists() and name_of(file).startswith("tests/")}
    imports = {(name, module) for name, file in files.items() for module in imported(file)}
    of_tests = {(name, module) for name, module in imports if re.fullmatch(r"tests\..*\btest_\w+", module)}
    of_benches = {
        (name, module)
        for name, module in imports
        if module.startswith("tests.bench.") and not name.startswith(("tests/bench/", "tests/docs/"))
    }
    assert of_tests == set()
    assert of_benches == set()
