"""The top level of the command line: lazy imports, command groups, version, completion."""

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from rich.console import Console

from headroom.cli.cluster import reported_in_one_line
from headroom.cli.main import GROUPS, _asks_serve, main
from headroom.cli.output.tables import terminal_width
from spark_jobs.cli import _exit_codes

COMMANDS = ["serve", "sql", "demo", *GROUPS]
# Each takes longer to import than `headroom --help` may.
HEAVY = ["kio", "rich", "pydantic", "pyarrow", "numpy", "clickhouse_connect", "structlog", "asyncio", "pyspark", "grpc"]


def headroom(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headroom", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_command() -> None:
    reported = headroom("--help").stdout
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w", reported, re.MULTILINE), command


@pytest.mark.parametrize("argv", [["--help"], ["--version"]])
def test_help_and_version_import_no_heavy_modules(argv: list[str]) -> None:
    script = f"""
import sys
from pathlib import Path
sys.argv = ["headroom", *{argv!r}]
from headroom.__main__ import main
try:
    main()
except SystemExit:
    pass
print(*sorted(sys.modules), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.split("\n"))
    assert ("headroom.cli.main" in imported) == ("typer" in imported) == (argv == ["--help"])
    assert imported.isdisjoint(HEAVY)


def in_process(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int | str | None:
    """The exit code. A process of its own for each command costs a second."""
    monkeypatch.setattr(sys, "argv", ["headroom", *argv])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    "command", [(), ("top",), ("sql",), ("quotas", "resolve"), ("job", "quota-headroom"), *((name,) for name in GROUPS)]
)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_each_command_shows_usage(
    command: tuple[str, ...], option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, *command, option) == 0
    assert re.match(rf"\s*Usage: .*{' '.join(command)}", capsys.readouterr().out)


def test_unknown_command_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert in_process(monkeypatch, "quota") == 2
    assert "quota" in capsys.readouterr().err


def test_sql_may_start_with_a_comment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert in_process(monkeypatch, "sql", "-- all\nSELECT 1", "--url", "http://127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("headroom: cannot reach http://127.0.0.1:1: Connection refused; start ")
    assert in_process(monkeypatch, "sql", "SELECT 1", "--ulr", "http://127.0.0.1:1") == 2


def test_version_shows_build_python_and_engine() -> None:
    line = headroom("--version").stdout
    assert re.fullmatch(
        r"headroom \d+\.\d+\.\d+ \((compiled|pure Python), Python 3\.\d+\.\d+, ClickHouse engine .+\)\n", line
    )


def test_shell_completion_lists_commands_and_groups() -> None:
    environ = {
        "_HEADROOM_COMPLETE": "complete_bash",
        "COMP_WORDS": "headroom quo",
        "COMP_CWORD": "1",
        "PATH": "/usr/bin",
    }
    script = "import sys; sys.argv = ['headroom']; from headroom.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["quotas"]


def test_help_preserves_text_that_looks_like_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, "quotas", "resolve", "--help") == 0
    reported = " ".join(capsys.readouterr().out.split())
    assert "--pairs FILE JSON list of [user, client-id] or [user, client-id, ip]." in reported


@pytest.mark.parametrize("reported", [_asks_serve, reported_in_one_line, _exit_codes])
def test_a_reader_who_has_gone_is_no_fault_of_a_server(
    reported: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokenPipeError), reported():
        raise BrokenPipeError
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert terminal_width(Console()) is None  # it makes no terminal of a pipe


def test_unwritable_output_exits_with_1_and_unencodable_text_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, and an encoding without the characters of a name."""
    command = [sys.executable, "-m", "headroom", "quotas", "resolve", "--from", "/dev/stdin", "--user", "\u00fc\u4e2d"]
    rules = '{"entries": [{"entity": {"user": "\u00fc\u4e2d"}, "values": {"producer_byte_rate": 1}}]}'.encode()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--output", "json"], input=rules, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"headroom: cannot write: No space left on device\n")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = subprocess.run([*command, "--output", "json"], input=rules, capture_output=True, timeout=60, check=True)
    assert b'{"user":"\xfc\\u4e2d",' in done.stdout
