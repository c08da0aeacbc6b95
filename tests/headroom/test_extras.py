"""A command whose extra is not installed says which one to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headroom.cli.main import missing_extra

# Hides a module from the import system, then runs the command line.
_WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
sys.argv = ["headroom", *{argv!r}]
from headroom.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "extra", "argv"),
    [
        ("pyspark", "spark", ["job", "quota-headroom"]),
        ("pyspark", "spark", ["demo"]),
        ("confluent_kafka", "demo", ["demo"]),
    ],
)
def test_missing_extra_is_named_with_exit_code_2(module: str, extra: str, argv: list[str]) -> None:
    script = _WITHOUT.format(module=module, argv=argv)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == f"headroom: {module} is not installed: pip install 'headroom[{extra}]'\n"
    assert (done.returncode, done.stdout) == (2, "")


def test_missing_module_outside_extras_is_not_an_extra() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'exporters.spoool'", name="exporters.spoool")) is None
