"""What `headroom serve` refuses before it opens anything, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app

ANY_PORT = 'listen: "127.0.0.1:0"'


def written(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text)
    return str(directory / name)


def test_all_startup_errors_are_reported_and_nothing_is_opened(tmp_path: Path) -> None:
    missing, data = tmp_path / "missing", tmp_path / "data"
    written(tmp_path, "short", "secret\n")
    file = written(
        tmp_path,
        "headroom.yaml",
        f"""
upstream: 127.0.0.1:1
command_config: {missing}
subscriptions: {written(tmp_path, "subscriptions.yaml", "one: {interval.ms: 5}")}
listener: {{security_protocol: SSL, tls_certificate: {missing}, tls_key: {missing}}}
listeners: [{{listen: "127.0.0.1:19092", security_protocol: SASL_PLAINTEXT}}]
web:
  token_file: {missing}
  tokens:
    - {{token_file: {missing}, user: alice}}
owners: {written(tmp_path, "owners.yaml", "owners: [{team: payments}]")}
forward: {{endpoint: "https://collector", ca: {missing}}}
grpc: {{listen: "127.0.0.1:19093", token_file: {tmp_path / "short"}}}
otlp: {{http: "127.0.0.1:19094", certificate: {missing}, private_key: {missing}}}
store: {{server: {{program: {missing}}}}}
""",
    )
    expected = [
        f"command_config: {missing} cannot be read: No such file or directory",
        f"cannot read web.token_file {missing}: No such file or directory",
        f"cannot read web.tokens.0.token_file {missing}: No such file or directory",
        f"cannot forward: cannot read {missing}: No such file or directory",
        f"{tmp_path}/subscriptions.yaml: one: Invalid value 5 for interval.ms, interval must be between 100 and 3600000"
        " (1 hour)",
        f"owners: {tmp_path}/owners.yaml: wrong owners: owners.0: Value error, payments has no pattern of"
        " user, client-id or topic",
        f"cannot run ClickHouse: {missing} is not an executable file",
        "grpc.token_file: a token is at least 16 visible ASCII characters",
        f"otlp.certificate: cannot read {missing}: No such file or directory",
    ]
    for command in (["serve", "--data", str(data)], ["config", "check"]):
        done = CliRunner().invoke(app, [*command, "--config", file])
        assert done.exit_code == 2
        assert done.stderr.splitlines() == [f"headroom: {fault}" for fault in expected]
        assert not data.exists()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "listener: {security_protocol: SASL_PLAINTEXT}",
            "listener.security_protocol SASL_PLAINTEXT: SASL credentials cannot be checked without --upstream",
        ),
        (
            "upstream: ['SASL_SSL://broker.example:9092']",
            "SASL_SSL://broker.example:9092 contradicts security.protocol=PLAINTEXT: set security.protocol=SASL_SSL",
        ),
        (
            "listener: {security_protocol: SSL, tls_certificate: /dev/null, tls_key: /dev/null}",
            "listener: cannot use /dev/null, /dev/null: ",
        ),
        ("subscriptions: /", "cannot read subscriptions: "),
        ("web: {token_file: /dev/null}", "web.token_file /dev/null: a token is at least 16 visible ASCII characters"),
        ("store: {retention_days: {nope: 1}}", "store.retention_days.nope: no table whose rows expire; these do: "),
        ("store: {server: {memory_bytes: 1}}", "store.server.memory_bytes: Input should be greater than or equal to"),
        (r'data: "a\\b"', "data: the ClickHouse server cannot use the path /"),
        (r'data: "a\u202eb"', "data: the ClickHouse server cannot use the path /"),
        ('web: {token: "not such a\\ttoken"}', "web.token: a token is at least 16 visible ASCII characters"),
        (f"grpc: {{{ANY_PORT}, token_file: /no/tokens}}", "grpc.token_file: cannot read /no/tokens: No such file"),
        (f"grpc: {{{ANY_PORT}, token_file: /dev/null}}", "grpc.token_file: /dev/null contains no token"),
        (
            f"grpc: {{{ANY_PORT}, certificate: /dev/null, private_key: /dev/null}}",
            "cannot use the certificates of grpc: ",
        ),
    ],
)
def test_invalid_setting_is_a_one_line_error(tmp_path: Path, text: str, fault: str) -> None:
    done = CliRunner().invoke(app, ["config", "check", "--config", written(tmp_path, "headroom.yaml", text)])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"headroom: {fault}")
    assert done.stderr.count("\n") == 1
