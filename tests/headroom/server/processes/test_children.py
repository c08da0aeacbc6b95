"""The child processes of `headroom serve`: their files are private, they have their parent's proxies and none of its
secrets, and a storage worker that hangs is replaced."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headroom.server.processes.child_supervisor import passed_environment
from tests.headroom.server.processes.pushes import push
from tests.kit.proxy import running_proxy
from tests.kit.serving import Served, config_file, eventually


def open_to_others(directory: Path) -> list[str]:
    """Files and directories with a permission for group or others."""
    found = []
    for path in [directory, *directory.rglob("*")]:
        try:
            status = path.lstat()
        except FileNotFoundError:  # of a part that was merged just now
            continue
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o077:
            found.append(f"{path} {stat.filemode(status.st_mode)}")
    return found


@pytest.mark.clickhouse
def test_files_are_private_and_children_get_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_WEB__TOKEN", "a-secret-of-32-characters-or-more")
    before = os.umask(0)
    try:
        served = Served(tmp_path)
        with served:
            asyncio.run(push(served.address, 7))
            eventually(served.metrics, lambda found: found["headroom_records:written"] > 0)
            assert open_to_others(tmp_path / "data") == []
            children = psutil.Process(served.process.pid).children(recursive=True)
            assert len(children) >= 2
            for child in children:
                assert "HEADROOM_WEB__TOKEN" not in child.environ(), child.cmdline()
            assert served.stop() == 0
    finally:
        os.umask(before)


_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ROOT = Path(__file__).parents[4]


@pytest.mark.clickhouse
@pytest.mark.slow
def test_a_service_of_its_own_works_beside_a_proxy_that_refuses_everything(tmp_path: Path) -> None:
    with running_proxy() as proxy:
        served = Served(tmp_path)
        command = [sys.executable, "-m", "headroom", "sql", "SELECT count() FROM pushes", "--url"]
        environment = {**os.environ, **dict.fromkeys(_VARIABLES, f"http://{proxy.address}"), "NO_PROXY": ""}
        served.argv[1:1] = [f"{name}={environment[name]}" for name in (*_VARIABLES, "NO_PROXY")]
        with served:
            eventually(served.ready, lambda answer: answer[0] == 200)
            done = subprocess.run(
                [*command, f"http://{served.sql}"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
        assert proxy.requests == []


@pytest.mark.clickhouse
@pytest.mark.slow
def test_child_processes_have_the_proxies_of_their_parent_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    needed, secrets = (*_VARIABLES, "NO_PROXY", "no_proxy", "LC_ALL", "PATH"), ("HEADROOM_X", "AWS_SECRET_ACCESS_KEY")
    for name in (*needed, *secrets):
        monkeypatch.setenv(name, name)
    passed = passed_environment()
    assert all(passed[name] == name for name in needed)
    assert not any(name in passed for name in secrets)


@pytest.mark.clickhouse
@pytest.mark.slow
def test_the_image_s_health_check_asks_directly() -> None:
    """Docker sets the proxies of its client's configuration in every container."""
    lines = (ROOT / "deploy" / "Containerfile").read_text().splitlines()
    (check,) = (line for line in lines if "/readyz/kafka" in line)
    program = check.split('"-c", "')[1].removesuffix('"]')
    with running_proxy() as proxy, running_proxy("127.0.0.1:9") as ours:
        environment = {**os.environ, **dict.fromkeys(_VARIABLES, f"http://{proxy.address}")}
        program = program.replace("127.0.0.1:9644", ours.address)
        subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False, capture_output=True)
        assert (proxy.requests, ours.requests) == ([], ["GET /readyz/kafka HTTP/1.1"])


@pytest.mark.release
@pytest.mark.clickhouse
def test_suspended_worker_is_replaced_and_all_records_are_written(tmp_path: Path) -> None:
    with Served(tmp_path, *config_file(tmp_path, push_ms=100)) as headroom:
        [worker] = headroom.children("headroom.server.processes.storage_process")
        os.kill(worker.pid, signal.SIGSTOP)
        asyncio.run(push(headroom.address, 7))
        found = eventually(headroom.metrics, lambda found: found["headroom_records:written"] == 2)  # and the instance
        assert found["headroom_worker_restarts_total"] == 1
        assert found["headroom_records_difference"] == 0
        assert headroom.stop() == 0
