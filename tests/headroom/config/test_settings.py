"""Settings from flags, environment and file: precedence, and one line for each invalid setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headroom.config.settings import Address, ConfigError
from headroom.config.sources import load


def written(directory: Path, text: str) -> Path:
    path = directory / "headroom.yaml"
    path.write_text(text)
    return path


def test_flags_override_environment_file_and_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "cluster: file\nlisten: 127.0.0.1:1\nspool: {max_bytes: 5, sync_ms: 6}\n")
    monkeypatch.setenv("HEADROOM_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("HEADROOM_UPSTREAM", "a:1,[::1]:2")
    monkeypatch.setenv("HEADROOM_SPOOL__SYNC_MS", "7")
    config = load(file, {"listen": "127.0.0.1:3", "http": None})
    assert config.listen == Address(host="127.0.0.1", port=3)
    assert config.upstream == (Address(host="a", port=1), Address(host="::1", port=2))
    assert config.cluster == "file"
    assert (config.spool.max_bytes, config.spool.sync_ms, config.spool.segment_bytes) == (5, 7, 67_108_864)
    assert config.http.port == 9644


@pytest.mark.parametrize("name", ["LISTEN", "SQL", "HTTP"])
def test_listen_addresses_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"HEADROOM_{name}", "[::1]:4711")
    assert getattr(load(None, {}), name.lower()) == Address(host="::1", port=4711)


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("HEADROOM_SQL", "zzz", "sql: 'zzz' is not HOST:PORT"),
        ("HEADROOM_SPOOL", "abc", "spool"),
        ("HEADROOM_SPOOL__MAX_BYTES", "-1", "spool.max_bytes: Input should be greater than 0"),
    ],
)
def test_invalid_environment_variable_is_reported(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, fault: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as reported:
        load(None, {})
    assert len(reported.value.faults) == 1
    assert fault in reported.value.faults[0]
    assert "\n" not in reported.value.faults[0]


@pytest.mark.parametrize(
    ("web", "fault"),
    [
        ("{tokens: [{token: TOKEN, user: a}]}", "operators could read nothing"),
        ("{token: OTHER, tokens: [{token: TOKEN}]}", "would see all clients"),
        ("{token: OTHER, tokens: [{user: a}]}", "set either token or token_file"),
        ("{token: OTHER, tokens: [{token: TOKEN, token_file: f, user: a}]}", "set either token or token_file"),
        ("{token: OTHER, tokens: [{token: short, user: a}]}", "should have at least 16 items"),
        ("{token: OTHER, tokens: [{token: TOKEN, team: unowned}]}", "unowned is no team"),
    ],
)
def test_tokens_of_applications_have_a_scope(tmp_path: Path, web: str, fault: str) -> None:
    text = f"web: {web}".replace("TOKEN", "t" * 16).replace("OTHER", "o" * 16)
    with pytest.raises(ConfigError) as reported:
        load(written(tmp_path, text), {})
    assert fault in str(reported.value)
    assert "t" * 16 not in str(reported.value)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"listen": "foo", "http": "1.1.1.1:99999", "clickhouse": "ftp://x"}
    with pytest.raises(ConfigError) as reported:
        load(written(tmp_path, "lisen: x\nspool: {nope: 1}\n"), flags)
    assert sorted(fault.split(":")[0] for fault in reported.value.faults) == [
        "clickhouse",
        "http.port",
        "lisen",
        "listen",
        "spool.nope",
    ]
    assert "lisen: unknown setting" in reported.value.faults


@pytest.mark.parametrize("text", [b"- a list", b"a: [", b"just text", b"\xff\xfe: 1", b"[" * 2_000, b"a: 2026-99-99"])
def test_invalid_file_is_one_fault(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as reported:
        load(file, {})
    assert len(reported.value.faults) == 1


def test_values_of_wrong_type_are_reported_by_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as reported:
        load(written(tmp_path, "listen: 1\nhttp: null\nspool: null\notlp: {grpc: null}\nquotas: 7\n"), {})
    assert sorted(reported.value.faults) == [
        "http: None is not HOST:PORT",
        "listen: 1 is not HOST:PORT",
        "quotas: not a mapping of settings",
        "spool: not a mapping of settings",
    ]


def test_non_json_variable_is_reported_with_other_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_TELEMETRY", "{")
    monkeypatch.setenv("HEADROOM_WEB__HOST_NAMES", "[1")
    found = [fault.split(":")[0] for fault in faults_of({"listen": "foo"})]
    assert found == ["listen", "web.host_names", "telemetry"]


@pytest.mark.parametrize(
    ("flags", "faults"),
    [
        ({"http": "127.0.0.1:8123"}, ["http: needs an address of its own: 127.0.0.1:8123 is that of sql"]),
        ({"sql": "127.0.0.1:9092"}, ["sql: needs an address of its own: 127.0.0.1:9092 is that of listen"]),
        (
            {"listen": "[::1]:1", "http": "[::1]:1", "grpc": {"listen": "[::1]:1"}, "clickhouse": "ftp://x"},
            [
                "clickhouse: 'ftp://x' is not http(s)://[user@]host[:port][/path][/headroom]",
                "http: needs an address of its own: [::1]:1 is that of listen",
                "grpc: needs an address of its own: [::1]:1 is that of listen",
            ],
        ),
        (
            {"otlp": {"grpc": "[::1]:1", "http": "[::1]:1"}, "listeners": [{"listen": "127.0.0.1:9644"}]},
            [
                "listeners: needs an address of its own: 127.0.0.1:9644 is that of http",
                "otlp: needs an address of its own: [::1]:1 is that of otlp",
            ],
        ),
        ({"observe": "a:1", "otlp": {"grpc": "127.0.0.1:9092"}}, []),  # listen is not opened
        ({"data": ""}, ["data: '' names no directory"]),
        ({"upstream": "", "observe": ","}, ["upstream.0: '' is not HOST:PORT", "observe.0: ',' is not HOST:PORT"]),
        ({"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "sql": "127.0.0.1:0"}, []),
        ({"listen": "127.0.0.1:8123", "clickhouse": "http://server"}, []),  # sql is not opened
    ],
)
def test_listeners_need_distinct_addresses(flags: dict[str, Any], faults: list[str]) -> None:
    assert faults_of(flags) == faults


def faults_of(flags: dict[str, Any]) -> list[str]:
    try:
        load(None, flags)
    except ConfigError as exc:
        return exc.faults
    return []


def test_unknown_variable_is_reported_with_other_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADROOM_LISEN", "headroom_spol__max_bytes", "HEADROOM_SPOOL__MAX_BITES"):
        monkeypatch.setenv(name, "1")
    assert faults_of({"listen": "foo"}) == [
        "HEADROOM_LISEN: unknown setting",
        "headroom_spol__max_bytes: unknown setting",
        "listen: 'foo' is not HOST:PORT",
        "spool.max_bites: unknown setting",
    ]


def test_variables_of_other_programs_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["HEADROOM_URL", "HEADROOM_KAFKA_LIBS", "HEADROOMS_NUMBER", "HEADROOM_SERVICE_HOST", "HEADROOM_PORT"]
    others += ["HEADROOM_SERVICE_PORT_HTTP", "HEADROOM_SQL_SERVICE_PORT", "HEADROOM_PORT_9092_TCP_ADDR"]
    for name in others:
        monkeypatch.setenv(name, "tcp://10.0.0.1:9092")
    assert faults_of({}) == []


def test_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_text("gateway: {id: a}\nprocesses: 2\ngateway: {drain_ms: 5}\n")
    with pytest.raises(ConfigError, match="gateway occurs 2 times"):
        load(file, {})
    file.write_text("gateway: {<<: {id: a}, drain_ms: 5}\n")
    assert (load(file, {}).gateway.id, load(file, {}).gateway.drain_ms) == ("a", 5)


def test_variable_below_a_plain_setting_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_CLUSTER__NAME", "x")
    monkeypatch.setenv("HEADROOM_LISTEN__PORT", "1")
    with pytest.raises(ConfigError) as raised:
        load(None, {})
    assert "HEADROOM_CLUSTER__NAME: unknown setting" in raised.value.faults


def test_faults_name_settings_and_no_validators(tmp_path: Path) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_text("web: {trusted_proxies: [nowhere], host_names: one}\n")
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    assert {fault.partition(":")[0] for fault in raised.value.faults} == {"web.trusted_proxies.0", "web.host_names"}
    assert "web.host_names: not a list" in raised.value.faults


def test_ip_quotas_are_off_although_yaml_reads_false(tmp_path: Path) -> None:
    assert load(written(tmp_path, "gateway: {ip_quotas: off}\n"), {}).gateway.ip_quotas == "off"


def test_proxy_protocol_and_the_networks_of_proxies_need_each_other(tmp_path: Path) -> None:
    for listener in ("{proxy_protocol: v1}", "{proxy_networks: [10.1.0.0/24]}"):
        with pytest.raises(ConfigError, match="needs proxy_networks"):
            load(written(tmp_path, f"listener: {listener}\n"), {})
    both = load(written(tmp_path, "listener: {proxy_protocol: v1, proxy_networks: [10.1.0.0/24]}\n"), {})
    assert both.listener.proxy_version == 1


def test_advertised_port_needs_a_fixed_port(tmp_path: Path) -> None:
    text = "gateway: {advertised_port: 19092}\nlisteners: [{listen: 'a:1', advertised_port: 443}]\n"
    config = load(written(tmp_path, text), {})
    assert (config.gateway.advertised_port, config.listeners[0].advertised_port) == (19_092, 443)
    with pytest.raises(ConfigError, match="needs a fixed port"):
        load(written(tmp_path, text), {"listen": "127.0.0.1:0"})
    with pytest.raises(ConfigError, match="less than or equal to 65535"):
        load(written(tmp_path, "gateway: {advertised_port: 65536}"), {})
