"""A failed write ends the managed server of the chdb wheel, so that no incomplete part becomes active."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from exporters.clickhouse.managed import server as managed
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer, write_guard
from tests.kit.clickhouse import LaunchedServer, connected

_PARTS, _ROWS = 20, 100


def _run(program: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code with the guard in a process that may write 100 bytes to a file, as on a full disk."""
    guard = write_guard()
    assert guard is not None, "make setup compiles it"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); import os; "
    environment = {**os.environ, "LD_PRELOAD": str(guard)}
    return subprocess.run(
        [sys.executable, "-c", limit + program], env=environment, capture_output=True, text=True, check=False
    )


def test_failed_write_to_a_file_ends_the_process(tmp_path: Path) -> None:
    part = tmp_path / "data.bin"
    ended = _run(f"f = os.open({str(part)!r}, os.O_WRONLY | os.O_CREAT); os.write(f, bytes(200)); os.write(f, b'1')")
    assert ended.returncode == os.EX_IOERR
    assert ended.stderr == f"Error: cannot write to {part}: File too large\n"


@pytest.mark.parametrize(
    "program",
    [
        "os.write(os.open('/dev/full', os.O_WRONLY), b'1')",  # no file of the store
        "r, w = os.pipe(); os.close(r); os.write(w, b'1')",
        "os.write(os.open('/dev/null', os.O_RDONLY), b'1')",
    ],
)
def test_other_failed_writes_are_reported_as_usual(program: str) -> None:
    ended = _run(program)
    assert ended.returncode == 1
    assert "OSError" in ended.stderr or "BrokenPipeError" in ended.stderr


@pytest.mark.parametrize(("name", "is_loaded"), [("a b", True), ("a:b", False), ("a;b", False)])
def test_the_guard_is_loaded_from_any_path_or_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_loaded: bool
) -> None:
    """The loader splits LD_PRELOAD at blanks and colons, and only prints what it did not find."""
    guard = tmp_path / name / "write_guard.so"
    guard.parent.mkdir()
    shutil.copy(managed._GUARD, guard)
    library = tmp_path / "server.so"
    monkeypatch.setattr(managed, "_GUARD", guard)
    monkeypatch.setattr(managed, "find_program", lambda _: str(library))
    server = ManagedServer(ServerSettings(tmp_path))
    assert server.ignores_failed_writes is not is_loaded
    environment = server.environment({**os.environ, "LD_LIBRARY_PATH": "/mine", "LD_PRELOAD": "libm.so.6"})
    server.close()
    maps = subprocess.run(["cat", "/proc/self/maps"], env=environment, capture_output=True, text=True, check=True)
    assert (str(guard) in maps.stdout, maps.stderr) == (is_loaded, "")
    assert "libm.so.6" in maps.stdout
    assert environment["LD_LIBRARY_PATH"].split(":")[-1] == "/mine"


@pytest.mark.clickhouse
def test_merge_on_a_full_disk_loses_no_row(tmp_path: Path) -> None:
    server = LaunchedServer(ServerSettings(tmp_path))
    if server.ignores_failed_writes:
        pytest.fail("make setup compiles the guard")
    try:
        _start(server)
        with _writer(server) as client:
            client.command("CREATE DATABASE headroom")
            client.command("CREATE TABLE headroom.t (n UInt64, s String) ENGINE = MergeTree ORDER BY n")
            client.command("SYSTEM STOP MERGES headroom.t")
            for part in range(_PARTS):
                rows = f"SELECT number, hex(rand64()) FROM numbers({part * _ROWS}, {_ROWS})"
                client.command(f"INSERT INTO headroom.t {rows}")
            assert server.process is not None
            _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1024, hard))
            with pytest.raises(ClickHouseError):
                client.command("OPTIMIZE TABLE headroom.t FINAL")
        assert server.process.wait(60) == os.EX_IOERR
        assert "the disk is full" in server.last_error(os.EX_IOERR)
        _start(server)
        with _writer(server) as client:
            client.command("OPTIMIZE TABLE headroom.t FINAL")
            [(rows_read, unique, parts)] = client.query(
                "SELECT count(), uniqExact(n), uniqExact(_part) FROM headroom.t WHERE notEmpty(s)"
            ).result_rows
        assert (rows_read, unique, parts) == (_PARTS * _ROWS, _PARTS * _ROWS, 1)
    finally:
        server.stop()


def _start(server: LaunchedServer) -> None:
    server.launch()
    server.wait_ready()


def _writer(server: LaunchedServer) -> Client:
    return connected(server.writer, database="system")
