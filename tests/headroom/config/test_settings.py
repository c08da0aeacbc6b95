"""Settings from flags, environment and file: precedence, and names that are unknown or ill-formed."""

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


def faults_of(flags: dict[str, Any], file: Path | None = None) -> list[str]:
    try:
        load(file, flags)
    except ConfigError as exc:
        return exc.faults
    return []


def test_flags_override_environment_file_and_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "cluster: file\nlisten: 127.0.0.1:1\nspool: {max_bytes: 5, sync_ms: 6}\n"
    text += "grpc: {listen: 127.0.0.1:7, max_concurrent_calls: 3}\notlp: {attributes: instaclustr}\n"
    file = written(tmp_path, text)
    assert load(file, {"grpc": None}).grpc.listen == Address(host="127.0.0.1", port=7)
    monkeypatch.setenv("HEADROOM_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("HEADROOM_UPSTREAM", "a:1,[::1]:2")
    monkeypatch.setenv("HEADROOM_HTTP", "[::1]:4711")
    monkeypatch.setenv("HEADROOM_SPOOL__SYNC_MS", "7")
    monkeypatch.setenv("HEADROOM_GRPC__LISTEN", "127.0.0.1:4")
    assert load(file, {}).grpc.listen == Address(host="127.0.0.1", port=4)
    flags = {"listen": "127.0.0.1:3", "http": None, "grpc": {"listen": "127.0.0.1:5"}, "otlp": {"grpc": "127.0.0.1:6"}}
    config = load(file, flags)
    assert config.listen == Address(host="127.0.0.1", port=3)
    assert config.upstream == (Address(host="a", port=1), Address(host="::1", port=2))
    assert config.cluster == "file"
    assert (config.spool.max_bytes, config.spool.sync_ms, config.spool.segment_bytes) == (5, 7, 67_108_864)
    assert config.http == Address(host="::1", port=4711)
    assert (config.grpc.listen, config.grpc.max_concurrent_calls) == (Address(host="127.0.0.1", port=5), 3)
    assert (config.otlp.grpc, config.otlp.attributes) == (Address(host="127.0.0.1", port=6), "instaclustr")


@pytest.mark.parametrize(
    ("variables", "faults"),
    [
        ({"SQL": "zzz"}, ["sql: 'zzz' is not HOST:PORT"]),
        ({"SPOOL": "abc"}, ["spool: not a mapping of settings"]),
        ({"SPOOL__MAX_BYTES": "-1"}, ["spool.max_bytes: Input should be greater than 0"]),
        (
            {"TELEMETRY": "{", "WEB__HOST_NAMES": "[1"},
            ["web.host_names: not a list", "telemetry: not a mapping of settings"],
        ),
        ({"CLUSTER__NAME": "x"}, ["HEADROOM_CLUSTER__NAME: unknown setting"]),
        (
            {"LISEN": "1", "spol__max_bytes": "1", "SPOOL__MAX_BITES": "1", "LISTEN": "foo"},
            [
                "HEADROOM_LISEN: unknown setting",
                "headroom_spol__max_bytes: unknown setting",
                "listen: 'foo' is not HOST:PORT",
                "spool.max_bites: unknown setting",
            ],
        ),
        ({"URL": "x", "KAFKA_LIBS": "x", "S_NUMBER": "x"}, []),  # of other commands and programs
        # Kubernetes sets these for a Service named headroom.
        (dict.fromkeys(("SERVICE_HOST", "PORT", "SERVICE_PORT_HTTP", "SQL_SERVICE_PORT"), "x"), []),
        ({"PORT_9092_TCP_ADDR": "x"}, []),
    ],
)
def test_variables_that_are_wrong_are_reported_together(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], faults: list[str]
) -> None:
    for name, value in variables.items():
        prefix = {"S_NUMBER": "HEADROOM", "spol__max_bytes": "headroom_"}.get(name, "HEADROOM_")
        monkeypatch.setenv(prefix + name, value)
    assert faults_of({}) == faults


def test_faults_of_file_and_flags_are_reported_together(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"listen": "foo", "http": "1.1.1.1:99999", "clickhouse": "ftp://x"}
    faults = faults_of(flags, written(tmp_path, "lisen: x\nspool: {nope: 1}\n"))
    assert sorted(fault.split(":")[0] for fault in faults) == [
        "clickhouse",
        "http.port",
        "lisen",
        "listen",
        "spool.nope",
    ]
    assert "lisen: unknown setting" in faults


@pytest.mark.parametrize("text", [b"- a list", b"a: [", b"just text", b"\xff\xfe: 1", b"[" * 2_000, b"a: 2026-99-99"])
def test_invalid_file_is_one_fault(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_bytes(text)
    assert len(faults_of({}, file)) == 1


def test_values_of_wrong_type_are_reported_by_setting(tmp_path: Path) -> None:
    text = "listen: 1\nhttp: null\nspool: null\notlp: {grpc: null}\nquotas: 7\n"
    text += "web: {trusted_proxies: [nowhere], host_names: one}\n"
    faults = faults_of({}, written(tmp_path, text))
    assert sorted(fault for fault in faults if not fault.startswith("web.trusted_proxies.0: ")) == [
        "http: None is not HOST:PORT",
        "listen: 1 is not HOST:PORT",
        "quotas: not a mapping of settings",
        "spool: not a mapping of settings",
        "web.host_names: not a list",
    ]
    assert len(faults) > 5  # the setting web.trusted_proxies.0, and no validator


def test_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    [fault] = faults_of({}, written(tmp_path, "gateway: {id: a}\nprocesses: 2\ngateway: {drain_ms: 5}\n"))
    assert "gateway occurs 2 times" in fault
    gateway = load(written(tmp_path, "gateway: {<<: {id: a}, drain_ms: 5}\n"), {}).gateway
    assert (gateway.id, gateway.drain_ms) == ("a", 5)


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
