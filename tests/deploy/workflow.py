"""Runs the shell steps of a GitHub workflow, as a runner does, without its actions."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


class Ran(NamedTuple):
    """The exit status of a step's last command, and what was printed."""

    status: int
    output: str


class Workflow:
    """`values`: of expressions, as `vars.NAME`. `replaced`: texts of the scripts by others, such as ports."""

    def __init__(self, path: Path, values: Mapping[str, str], replaced: Mapping[str, str] | None = None) -> None:
        self._document: dict[str, Any] = yaml.safe_load(path.read_text())
        self._values = values
        self._replaced = replaced or {}

    def run(self, job: str, directory: Path, path: str, **environment: str) -> Iterator[Ran]:
        """A result for each step that has a script: those with `if: always()`, and the others until one failed."""
        failed = False
        for step in self._document["jobs"][job]["steps"]:
            if "run" not in step or (failed and step.get("if") != "always()"):
                continue
            given = {**self._document.get("env", {}), **step.get("env", {})}
            variables = {name: self._filled(str(value)) for name, value in given.items()}
            script = self._filled(step["run"])
            for text, other in self._replaced.items():
                script = script.replace(text, other)
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
                cwd=directory,
                env={**os.environ, **variables, **environment, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            failed = failed or done.returncode != 0
            yield Ran(done.returncode, done.stdout)

    def _filled(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: self._values[found[1]], text)
