"""`headroom serve` with HTTP_PROXY: its own ClickHouse is asked directly, with the rows and the writer's password."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headroom.server.processes.child_supervisor import passed_environment
from tests.kit.proxy import running_proxy
from tests.kit.serving import Served, eventually

pytestmark = [pytest.mark.clickhouse, pytest.mark.slow]

_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ROOT = Path(__file__).parents[3]


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


def test_child_processes_have_the_proxies_of_their_parent_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    needed, secrets = (*_VARIABLES, "NO_PROXY", "no_proxy", "LC_ALL", "PATH"), ("HEADROOM_X", "AWS_SECRET_ACCESS_KEY")
    for name in (*needed, *secrets):
        monkeypatch.setenv(name, name)
    passed = passed_environment()
    assert all(passed[name] == name for name in needed)
    assert not any(name in passed for name in secrets)


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
