"""Compiles the hot modules into the wheel with mypyc. The interpreted source is in the wheel too, and is the fallback.

A wheel is compiled when mypyc and a C compiler are there; HEADROOM_BUILD=pure leaves it out, HEADROOM_BUILD=compiled
fails without. An editable install runs the source as it is; only the write guard, which is C, is compiled in place.

`python hatch_build.py DIRECTORY` makes a copy of the packages with the compiled modules in it, for tests and profiles.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
WRITE_GUARD = Path("exporters/clickhouse/managed/write_guard.c")
PACKAGES = ("headroom", "telemetry", "quota_metrics", "exporters", "spark_jobs", "deploy")

# Runs where the copy of the packages is. Types of dependencies do not matter here: `make check` runs mypy --strict.
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = sys.argv[3:]
del sys.argv[3:]
flags = ["--config-file=", "--ignore-missing-imports", "--explicit-package-bases"]
setup(name="headroom", py_modules=[], packages=[], ext_modules=mypycify(flags + modules, opt_level="3"))
"""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg] # generic in hatchling's source only
    """Hatchling calls `initialize` before it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the compiled modules to the wheel. Raises RuntimeError when they are demanded and cannot be made."""
        wanted = os.environ.get("HEADROOM_BUILD", "")
        if wanted == "pure":
            return
        if version == "editable":
            try:
                compile_write_guard(ROOT)
            except (RuntimeError, OSError) as exc:
                self.app.display_warning(str(exc))
            return
        self._copy = tempfile.mkdtemp(prefix="headroom-build-")
        try:
            built = compiled(Path(self._copy))
        except (RuntimeError, OSError) as exc:
            if wanted == "compiled":
                raise
            self.app.display_warning(f"the wheel is pure Python: {exc}")
            return
        build_data["force_include"].update({str(Path(self._copy) / name): str(name) for name in built})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if copy := getattr(self, "_copy", None):
            shutil.rmtree(copy, ignore_errors=True)


def compiled(directory: Path) -> list[Path]:
    """Copies the packages, compiles the hot modules in place and returns their paths. Raises RuntimeError."""
    modules = hot_modules()
    for module in modules:
        _refuse_calls_in_slices(module)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    compile_write_guard(directory)
    command = [sys.executable, "-c", _SETUP, "build_ext", "--inplace", *modules]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    shutil.rmtree(directory / "build", ignore_errors=True)
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"mypyc failed: {said[-1]}")
    return [path.relative_to(directory) for path in sorted(directory.rglob("*.so"))]


def compile_write_guard(root: Path) -> None:
    """Compiles the library that is preloaded into chdb's server, beside its source. Raises RuntimeError."""
    if sys.platform != "linux":
        return
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O2",
        "-o",
        str(root / WRITE_GUARD.with_suffix(".so")),
        str(root / WRITE_GUARD),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as exc:
        raise RuntimeError(f"no C compiler, so chdb's server runs without its write guard: {exc}") from exc
    if done.returncode:
        raise RuntimeError(f"cannot compile {WRITE_GUARD}: {(done.stderr.splitlines() or ['no output'])[-1]}")


def hot_modules() -> list[str]:
    """Paths of the modules to compile, as pyproject.toml lists them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return modules


def _refuse_calls_in_slices(module: str) -> None:
    """mypyc 2.4 evaluates the bounds of a slice twice unless it knows the type as list, tuple, str or bytes.

    Raises RuntimeError where that could be seen: at a call in a bound, `len` excepted.
    """
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if not isinstance(node, ast.Slice):
            continue
        for part in ast.walk(node):
            is_call = isinstance(part, ast.Call) and not (isinstance(part.func, ast.Name) and part.func.id == "len")
            if is_call or isinstance(part, ast.NamedExpr):
                raise RuntimeError(f"{module}:{node.lineno}: no call in the bounds of a slice, mypyc makes it twice")


def main(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name in compiled(directory):
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
