"""`headroom serve --data`: its ClickHouse server is restarted when it dies, stopped last, and never orphaned."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ServerError, find_program
from headroom.demo.processes import LOOPBACK, free_ports
from tests.kit.clickhouse import LaunchedServer, launched
from tests.kit.serving import PATIENCE_S, Served, eventually, rows

LAUNCHER = "exporters.clickhouse.managed.launcher"
CHECKS = "SELECT token FROM headroom.write_checks"


@pytest.mark.clickhouse
def test_killed_server_is_restarted_with_its_rows(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        eventually(served.ready, lambda answer: answer == (200, "ready\n"))
        checks = rows(served.sql, CHECKS)
        [server] = served.children(LAUNCHER)
        server.kill()
        [restarted] = eventually(
            lambda: served.children(LAUNCHER), lambda found: len(found) == 1 and found[0].pid != server.pid
        )
        eventually(lambda: _answers(served), bool)
        assert set(checks) <= set(rows(served.sql, CHECKS))  # it may have written another
        assert served.stop() == 0
        assert not restarted.is_running()
    assert served.log.read_text().count("the ClickHouse server ended") == 1


@pytest.mark.release
@pytest.mark.clickhouse
def test_server_ends_with_a_killed_parent(tmp_path: Path) -> None:
    with Served(tmp_path, "--sql", f"{LOOPBACK}:{free_ports(1)[0]}") as first:
        eventually(first.ready, lambda answer: answer == (200, "ready\n"))
        checks = rows(first.sql, CHECKS)
        [server] = first.children(LAUNCHER)
        first.process.kill()
        with Served(tmp_path, "--sql", first.sql) as second:  # at the same address, over the same directory
            # Its new parent, process 1, may not yet have asked for its exit code.
            assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
            eventually(second.ready, lambda answer: answer == (200, "ready\n"))
            assert set(checks) < set(rows(second.sql, CHECKS))
            assert second.stop() == 0


@pytest.mark.clickhouse
def test_sigint_stops_the_server_last(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        [server] = served.children(LAUNCHER)
        assert os.getsid(server.pid) != os.getsid(served.process.pid)
        assert server.name() == "headroom-clickh"
        assert server.nice() >= 10
        group = Path(f"/proc/{server.pid}/autogroup")  # empty where Linux has no autogroups
        if os.geteuid() == 0 and os.access(group, os.W_OK) and (found := group.read_text()):
            assert found.endswith("nice 10\n")
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(PATIENCE_S) == 0
        assert not psutil.pid_exists(server.pid)
    assert "does not accept rows" not in served.log.read_text()


@pytest.mark.clickhouse
def test_second_server_on_same_directory_or_port_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.clickhouse.managed.server._PREDECESSOR_S", 0.2)
    with launched(LaunchedServer(ServerSettings(tmp_path / "one"))) as first:
        with pytest.raises(ServerError, match="another ClickHouse server uses"):
            LaunchedServer(ServerSettings(tmp_path / "one"))
        with pytest.raises(OSError, match="Address already in use"):
            LaunchedServer(ServerSettings(tmp_path / "two", http_port=first.http_port))


@pytest.mark.clickhouse
def test_failed_server_start_reports_the_cause(tmp_path: Path) -> None:
    server = LaunchedServer(ServerSettings(tmp_path))
    (tmp_path / "server.xml").write_text("<clickhouse><path>")
    server.launch()
    with pytest.raises(ServerError, match=r"ended with \d+: .*Exception"):
        server.wait_ready()
    server.stop()


def test_program_comes_from_configuration_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "clickhouse"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(ServerError, match="is not an executable file"):
        find_program(program)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert find_program(program) == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(None) == str(program)
    program.write_text("#!/bin/sh\necho ClickHouse server version 25.3.2.39 '(official build)'.\n")
    with pytest.raises(ServerError, match=rf"^{program}: ClickHouse 25\.3\.2\.39 is too old: .*server\.program"):
        find_program(None)
    monkeypatch.setenv("PATH", "")
    assert find_program(None).endswith("_chdb.abi3.so")


def test_launcher_executes_the_configured_program(tmp_path: Path) -> None:
    program = tmp_path / "clickhouse"
    program.write_text('#!/bin/sh\necho "$@" "$CLICKHOUSE_WATCHDOG_ENABLE"\n')
    program.chmod(0o700)
    argv = [sys.executable, "-m", LAUNCHER, str(os.getpid()), str(program), "/etc/c.xml"]
    assert subprocess.check_output(argv, text=True) == "server --config-file=/etc/c.xml 0\n"


def test_launcher_exits_when_its_parent_is_gone(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", LAUNCHER, "1", "/nowhere", "/etc/c.xml"]
    assert subprocess.run(argv, check=False).returncode == 1


def _answers(served: Served) -> bool:
    try:
        return rows(served.sql, "SELECT 1") == [(1,)]
    except Exception:  # noqa: BLE001 - a server that is starting fails in many ways
        return False
