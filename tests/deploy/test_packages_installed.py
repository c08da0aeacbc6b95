"""The wheel and the sdist: built, installed in an empty environment, run without the checkout."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from headroom.demo.processes import first_line, start, stop

pytestmark = [pytest.mark.release, pytest.mark.dist, pytest.mark.timeout(900)]  # it compiles

ROOT = Path(__file__).parents[2]
PACKAGES = ("headroom", "telemetry", "quota_metrics", "exporters", "spark_jobs", "deploy")
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of both, the wheel built from the sdist."""
    directory = tmp_path_factory.mktemp("dist")
    built: list[str | Path] = ["--python", sys.executable, "--out-dir", directory, ROOT]
    command = [UV, "build", "--quiet", "--no-build-isolation", *built]
    subprocess.run(command, env={**os.environ, "HEADROOM_BUILD": "compiled"}, check=True, timeout=800)
    return directory


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel and what it requires, and no extra."""
    directory = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, directory], check=True, timeout=300)
    constraints = directory / "constraints.txt"
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    constraints.write_text("\n".join(line.removesuffix(" \\") for line in lines if line[:1] not in (" ", "#", "")))
    into: list[str | Path] = ["--python", directory / "bin" / "python", "--constraint", constraints]
    subprocess.run([UV, "pip", "install", "--quiet", *into, *dist.glob("*.whl")], check=True, timeout=800)
    return directory / "bin"


def test_wheel_contains_all_package_files_and_compiled_modules(dist: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    [wheel] = dist.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert set(listed.stdout.split()) <= held
    assert any(name.startswith("telemetry/wire/frames.") and name.endswith(".so") for name in held)
    assert "exporters/clickhouse/managed/write_guard.so" in held
    assert not any(name.startswith(("tests/", "hatch_build")) for name in held)


def test_sdist_contains_no_tests_and_no_lock_file(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "telemetry/wire/frames.py"} <= held
    assert not any(name.startswith("tests/") or name == "requirements.txt" for name in held)


@pytest.mark.parametrize(("pure", "build"), [("", "compiled"), ("1", "pure Python")])
def test_installed_command_reports_its_build(environment: Path, tmp_path: Path, pure: str, build: str) -> None:
    reported = subprocess.run(
        [environment / "headroom", "--version"],
        cwd=tmp_path,
        env={**BARE, "HEADROOM_PURE": pure},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    python = ".".join(map(str, sys.version_info[:3]))
    assert reported == f"headroom 0.1.0 ({build}, Python {python}, ClickHouse engine not installed)\n"


@pytest.mark.parametrize("pure", ["", "1"])
def test_installed_command_serves_and_drains(environment: Path, tmp_path: Path, pure: str) -> None:
    listeners = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--clickhouse", "http://127.0.0.1:9/headroom"]
    argv = ["env", "-i", f"HEADROOM_PURE={pure}", str(environment / "headroom"), "serve", *listeners]
    with (tmp_path / "log").open("wb") as log:
        process = start([*argv, "--data", str(tmp_path / "data")], stderr=log, stdout=subprocess.PIPE)
    assert first_line(process, 150).startswith("ready kafka="), (tmp_path / "log").read_text()
    assert stop(process, 150) == 0, (tmp_path / "log").read_text()


def test_missing_extra_is_named_in_the_error(environment: Path, tmp_path: Path) -> None:
    argv: list[str | Path] = [environment / "headroom", "job", "quota-headroom"]
    done = subprocess.run(argv, cwd=tmp_path, env=BARE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "pip install 'headroom[spark]'" in done.stderr
