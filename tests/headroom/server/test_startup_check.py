"""What `headroom serve` refuses before it starts anything, with exit code 2: also addresses that cannot be opened."""

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from exporters.listening_socket import at_an_address, end_of, listening_socket
from headroom.cli.main import app
from headroom.config.settings import Address, ServeConfig
from headroom.server.addresses import address_fault, address_faults

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
sql: nowhere
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
        "sql: 'nowhere' is not HOST:PORT",
        f"command_config: {missing} cannot be read: No such file or directory",
        f"listener: cannot use {missing}, {missing}: No such file or directory",
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


LOOPBACK, IPV6 = "127.0.0.1", "::1"


def configured(address: str, **more: Any) -> ServeConfig:
    """Each address that may be opened is this one; the validation of settings would refuse that."""
    free = dict.fromkeys(("listen", "http", "sql"), f"{LOOPBACK}:0")
    one = ServeConfig.model_validate({**free, **more})
    parsed = ServeConfig.model_validate({**free, "listen": address}).listen
    grpc = one.grpc.model_copy(update={"listen": parsed})
    otlp = one.otlp.model_copy(update={"grpc": parsed, "http": parsed})
    return one.model_copy(update={"listen": parsed, "http": parsed, "grpc": grpc, "otlp": otlp})


def test_each_address_in_use_is_reported_with_its_flag_or_index() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        address = f"{LOOPBACK}:{taken.getsockname()[1]}"
        why = f"cannot listen on {address}: Address already in use"
        flags = ["--listen", "--http", "--grpc", "--otlp-grpc", "--otlp-http"]
        assert address_faults(configured(address)) == [f"{flag}: {why}" for flag in flags]
        observing = configured(address, observe="127.0.0.1:1")
        assert address_faults(observing) == [f"{flag}: {why}" for flag in flags[1:]]
        further = configured(f"{LOOPBACK}:0", upstream="127.0.0.1:1", listeners=[{"listen": address}])
        assert address_faults(further) == [f"listeners[0].listen: {why}"]


@pytest.mark.parametrize(
    ("address", "why"), [("192.0.2.1:9000", "Cannot assign requested address"), ("no-such-host.invalid:9000", "")]
)
def test_address_of_another_machine_is_reported(address: str, why: str) -> None:
    faults = address_faults(configured(address))
    assert faults
    assert all(f": cannot listen on {address}: {why}" in fault for fault in faults)


def test_free_address_and_one_in_time_wait_are_accepted() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        address = f"{LOOPBACK}:{server.getsockname()[1]}"
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()  # the server's end waits in TIME_WAIT
    assert address_faults(configured(address)) == []
    assert address_faults(configured(f"{LOOPBACK}:0")) == []


def test_one_usable_address_of_a_host_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `localhost` where IPv6 is switched off, and beside one that swallows packets."""
    both = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0)) for host in ("192.0.2.1", LOOPBACK)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert address_faults(configured("localhost:0")) == []
    reached = at_an_address("two.example", 0.1, lambda host: asyncio.sleep(0 if host == LOOPBACK else 600, host))
    assert asyncio.run(reached) == LOOPBACK
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both[:1])
    assert address_faults(configured("localhost:0"))


def test_port_of_either_family_in_use_is_a_fault() -> None:
    for host in (LOOPBACK, "0.0.0.0", IPV6):
        with closing(listening_socket(host, 0)) as taken:
            port = taken.getsockname()[1]
            assert "Address already in use" in address_fault(Address(host="::", port=port))


@pytest.mark.parametrize("host", ["::", "0:0:0:0:0:0:0:0", "::0"])
def test_every_spelling_of_any_address_takes_both(host: str) -> None:
    with closing(listening_socket(host, 0)) as listener:
        for peer in (LOOPBACK, IPV6):
            with closing(socket.create_connection((peer, listener.getsockname()[1]))) as client:
                accepted, address = listener.accept()
                assert end_of(address) == client.getsockname()[:2]
                accepted.close()


def test_single_addresses_take_one_family() -> None:
    for host, other in (("0.0.0.0", IPV6), (IPV6, LOOPBACK), (LOOPBACK, IPV6)):
        with closing(listening_socket(host, 0)) as listener, pytest.raises(OSError, match="refused"):
            socket.create_connection((other, listener.getsockname()[1])).close()


def test_kernel_without_ipv6_listens_for_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with closing(listening_socket("::", 0)) as listener:
        assert listener.family == socket.AF_INET
        assert listener.getsockname()[0] == "0.0.0.0"
