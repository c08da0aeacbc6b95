"""What does not run is named in one line: platforms, before anything is loaded, and commands without their extra."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer, ServerError, find_program
from headroom.cli.main import missing_extra
from headroom.platforms import Platform, obstacle, this_platform

ROOT = Path(__file__).parents[2]
LINUX = Platform(
    (3, 12), "cpython-312-x86_64-linux-gnu", "linux", "x86_64", is_free_threaded=False, has_clickhouse=False, java=17
)
MAC = LINUX._replace(abi="cpython-312-darwin", system="darwin", machine="arm64")


@pytest.mark.parametrize(
    ("platform", "word"),
    [
        (this_platform()._replace(java=17), None),
        (LINUX, None),
        (LINUX._replace(abi="cpython-312-aarch64-linux-gnu", machine="aarch64"), None),
        (LINUX._replace(java=0), "there is none that runs"),
        (LINUX._replace(java=11), "there is Java 11"),
        (LINUX._replace(python=(3, 10)), "Python 3.11 or newer"),
        (LINUX._replace(python=(3, 15)), "PYTHON=python3.14"),
        (LINUX._replace(python=(3, 13), is_free_threaded=True), "free-threaded"),
        (LINUX._replace(abi="cpython-312-x86_64-linux-musl"), "Alpine"),
        (MAC, "`clickhouse`"),
        (MAC._replace(has_clickhouse=True), None),
        (MAC._replace(machine="x86_64", has_clickhouse=True), "Intel"),
    ],
)
def test_an_obstacle_is_one_line(platform: Platform, word: str | None) -> None:
    line = obstacle(platform, needs_java=True)
    assert (line is None) if word is None else (word in str(line) and "\n" not in str(line))


def test_it_is_said_before_packages_are_loaded(tmp_path: Path) -> None:
    """By a Python without packages, as `make demo` starts it."""
    command = [sys.executable, "-I", "-S", str(ROOT / "headroom" / "platforms.py")]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    dry = ["make", "-n", "-C", str(ROOT), f"VENV={tmp_path}", f"PYTHON={shlex.join(command[:-1])}"]
    for target, without_java in (("demo", 1), ("setup", 0)):
        recipe = subprocess.run([*dry, target], capture_output=True, text=True, check=True).stdout
        (line,) = (line for line in recipe.splitlines() if "headroom/platforms.py" in line)
        done = subprocess.run(line, shell=True, cwd=ROOT, env=os.environ | {"JAVA_HOME": "/gone"}, check=False)
        assert done.returncode == without_java
    recipe = (ROOT / "Makefile").read_text().partition("$(DEMO_READY): ")[2].partition("\n\n")[0]
    assert recipe.index("headroom/platforms.py") < recipe.index("$(INSTALL)")


def test_where_chdb_has_no_server_it_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerError, match="chdb has no server for this system"):
        find_program(None)


def test_a_path_that_clickhouse_s_configuration_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"a path in UTF-8: .*caf\\udce9' is none"):
        ManagedServer(ServerSettings(tmp_path / os.fsdecode(b"caf\xe9")))


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-demo.txt", "deploy/requirements.txt"])
def test_chdb_is_loaded_on_linux_only(lock: str) -> None:
    (line,) = (line for line in (ROOT / lock).read_text().splitlines() if line.startswith("chdb=="))
    assert "; sys_platform == 'linux'" in line


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
