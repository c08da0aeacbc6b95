"""`headroom job quota-headroom`: invalid input exits with one line and its exit code before Spark starts."""

import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app as headroom
from spark_jobs.cli import JOBS, app
from tests.kit.fake_clickhouse import fake_clickhouse, http
from tests.kit.kafka.quota_files import quotas_of


def invoke(*asked: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    result = CliRunner().invoke(app, ["quota-headroom", *asked])
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        (["--since", "yesterday"], "cannot read the duration 'yesterday': write 90s, 15m, 2h or 7d"),
        (["--from", "2026-11-20T10:00:00Z"], "--from and --to go together"),
        (
            ["--from", "ten", "--to", "eleven"],
            "cannot read the time 'ten': write 2026-11-20T10:00:00Z or epoch seconds",
        ),
        (
            ["--from", "120", "--to", "60"],
            "nothing lies between 1970-01-01T00:02:00+00:00 and 1970-01-01T00:01:00+00:00",
        ),
        (["--window", "0"], "a window of 0 s: it has whole minutes, and at most 3600 s"),
        (["--warn", "0.5"], "thresholds must be above 0 and must not fall: watch 0.6, warn 0.5, critical 0.95"),
        (["--output", "parquet"], "--output parquet needs --path"),
        (["--once"], "--once is for --stream"),
    ],
)
def test_invalid_options_exit_with_2(asked: list[str], reported: str) -> None:
    assert invoke(*asked) == (2, f"headroom: {reported}\n")


def test_top_is_not_negative() -> None:
    negative = CliRunner().invoke(app, ["quota-headroom", "--top", "-1"])
    assert (negative.exit_code, "--top" in negative.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "asked", "users"),
    [
        ("client-inventory", ["--warn", "0.7"], "quota-headroom"),
        ("throttle-forecast", ["--once"], "quota-headroom"),
        ("quota-suggest", ["--window", "30"], "quota-headroom"),
        ("backtest", ["--top", "5"], "quota-headroom, throttle-forecast, client-inventory"),
        # It would never match, so that a check in CI would pass for ever.
        *((name, ["--fail-on", "warn"], "quota-headroom") for name in sorted(set(JOBS) - {"quota-headroom"})),
    ],
)
def test_a_flag_that_a_job_does_not_use_is_refused(name: str, asked: list[str], users: str) -> None:
    result = CliRunner().invoke(app, [name, *asked])
    said = f"headroom: {asked[0]} is for {users}: {name} does not use it\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_each_job_has_the_common_flags_and_refuses_what_they_cannot_be(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).stdout
    common = ("url", "since", "from", "to", "cluster", "source", "output", "path", "master")
    assert [flag for flag in common if f"--{flag} " not in shown] == []
    assert CliRunner().invoke(app, [name, "--nonsense"]).exit_code == 2
    nowhere = CliRunner().invoke(app, [name, "--source", "nowhere"])
    said = "headroom: no source of usage is named 'nowhere': there are gateway, jmx\n"
    assert (nowhere.exit_code, nowhere.stdout, nowhere.stderr) == (2, "", said)
    if name != "quota-suggest":  # only suggestions are a file of quotas
        of_quotas = CliRunner().invoke(app, [name, "--output", "yaml"])
        assert (of_quotas.exit_code, of_quotas.stdout, "'yaml'" in of_quotas.stderr) == (2, "", True)


def test_a_written_file_of_quotas_names_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.jobs.quota_suggest.run", lambda options: [])
    file = tmp_path / "quotas.yaml"
    result = CliRunner().invoke(headroom, ["quotas", "suggest", "--output", "yaml", "--path", str(file)])
    said = f"next: headroom quotas plan -f {file} --bootstrap-server HOST:PORT\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", said)
    assert quotas_of(file.read_text()) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--by", "ip"], "'ip' is not one of 'auto', 'user', 'client-id', 'both'"),
        (["--output", "markdown"], "'markdown' is not one of 'table', 'json', 'html', 'parquet', 'yaml'"),
        (["--owners", "x.yaml"], "--owners is for team-report: quota-suggest does not use it"),
        (["--max-harm", "0"], "No such option: --max-harm"),
    ],
)
@pytest.mark.parametrize("command", [("job", "quota-suggest"), ("quotas", "suggest")])
def test_suggest_refuses_what_it_does_not_know(command: tuple[str, str], asked: list[str], said: str) -> None:
    result = CliRunner().invoke(headroom, [*command, *asked], env={"COLUMNS": "200"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("url", ["localhost:8123", "ftp://localhost", "http://", "http://host:x", "chdb:///tmp", ""])
def test_invalid_url_exits_with_2(url: str) -> None:
    code, reported = invoke("--url", url)
    assert code == 2
    assert reported.startswith("headroom: ")


def test_unreachable_server_exits_with_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    code, reported = invoke("--url", url)
    assert code == 3
    assert reported.startswith(f"headroom: cannot reach {url}: Connection refused; start `headroom serve`")


REFUSED = http(
    b"Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)",
    "403 Forbidden\r\nX-ClickHouse-Exception-Code: 516",
)
NOT_CLICKHOUSE = "headroom: {url}: |headroom: {url} answers, but not as ClickHouse"


@pytest.mark.parametrize(
    ("answer", "exit_code", "said"),
    [
        (b"", 3, NOT_CLICKHOUSE),
        (b"\xff\xfe\x00", 3, NOT_CLICKHOUSE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 3, NOT_CLICKHOUSE),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found", 3, NOT_CLICKHOUSE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\ncut", 3, NOT_CLICKHOUSE),
        (REFUSED, 2, ".*wrong password"),  # a matter of configuration: trying again does not help
    ],
)
def test_what_the_server_answers_decides_the_exit_code(answer: bytes, exit_code: int, said: str) -> None:
    with fake_clickhouse(answer, version="") as fake:
        code, reported = invoke("--url", fake.url)
    assert code == exit_code
    assert re.match(said.format(url=re.escape(fake.url)), reported)


@pytest.mark.parametrize(("job", "flag"), [("client-inventory", "--path"), ("team-report", "--owners")])
def test_a_url_for_a_file_of_this_machine_is_refused_as_it_was_written(job: str, flag: str) -> None:
    done = CliRunner().invoke(headroom, ["job", job, flag, "s3a://bucket//of/it.yaml"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "s3a://bucket//of/it.yaml is no file of this machine" in done.stderr
