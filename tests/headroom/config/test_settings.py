"""Settings from flags, environment and file: precedence, names and values that are refused, what valid ones mean."""

from pathlib import Path
from typing import Any

import pytest

from exporters.clickhouse.connection import StoreOptions, TlsFiles
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
        ({"URL": "x", "KAFKA_LIBS": "x", "BUILD": "x", "S_NUMBER": "x"}, []),  # of other commands and programs
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
def test_invalid_file_is_one_fault_beside_those_of_flags(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_bytes(text)
    flags = {"listen": "foo", "listener": {"security_protocol": "SSL"}}  # the file may name the certificate
    assert faults_of(flags, file)[1:] == ["listen: 'foo' is not HOST:PORT"]


def test_values_of_wrong_type_are_reported_by_setting(tmp_path: Path) -> None:
    text = "listen: 1\nupstream: [a:1, 5]\nhttp: null\nspool: null\notlp: {grpc: null}\nquotas: 7\n"
    text += "web: {trusted_proxies: [nowhere], host_names: one}\n"
    faults = faults_of({}, written(tmp_path, text))
    assert sorted(fault for fault in faults if not fault.startswith("web.trusted_proxies.0: ")) == [
        "http: None is not HOST:PORT",
        "listen: 1 is not HOST:PORT",
        "quotas: not a mapping of settings",
        "spool: not a mapping of settings",
        "upstream.1: '5' is not HOST:PORT",
        "web.host_names: not a list",
    ]
    assert len(faults) > 5  # the setting web.trusted_proxies.0, and no validator


def test_key_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    [fault] = faults_of({}, written(tmp_path, "gateway: {id: a}\nprocesses: 2\ngateway: {drain_ms: 5}\n"))
    assert "gateway a second time" in fault
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


TOKEN, OTHER, SHORT = "t" * 16, "o" * 16, "x" * 15
MINE = {"token": TOKEN, "user": "a"}
AT = {"endpoint": "http://collector"}
PROXIES = "needs proxy_networks"


@pytest.mark.parametrize(
    ("section", "settings", "fault"),
    [
        ("web", {"tokens": [MINE]}, "operators could read nothing"),
        ("web", {"token": OTHER, "tokens": [{"token": TOKEN}]}, "would see all clients"),
        ("web", {"token": OTHER, "tokens": [{"user": "a"}]}, "set either token or token_file"),
        ("web", {"token": OTHER, "tokens": [{**MINE, "token_file": "f"}]}, "set either token or token_file"),
        ("web", {"token": OTHER, "tokens": [{"token": SHORT, "user": "a"}]}, "should have at least 16 items"),
        ("web", {"token": OTHER, "tokens": [{"token": TOKEN, "team": "unowned"}]}, "unowned is no team"),
        ("grpc", {"token": ""}, "grpc.token: "),  # an empty variable must not leave the receiver open
        ("grpc", {"token": SHORT}, "at least 16"),
        ("grpc", {"token": TOKEN, "token_file": "f"}, "not both"),
        ("grpc", {"certificate": "c"}, "certificate and private_key need each other"),
        ("grpc", {"client_ca": "c"}, "client_ca needs certificate"),
        ("grpc", {"subjects": ["CN=plugin"]}, "subjects need client_ca"),
        ("grpc", {"allow_unauthenticated": False}, "nobody could call"),
        ("otlp", {"attributes": "mine"}, "otlp.attributes"),
        ("otlp", {"token": "short"}, "at least 16"),
        ("otlp", {"allow_unauthenticated": False}, "nobody could call"),
        ("forward", {"endpoint": "collector:4317"}, "is not http"),
        ("forward", {"endpoint": f"http://user:{TOKEN}@collector"}, "is not http"),
        ("forward", {"endpoint": "http://collector/v1/metrics"}, "no path"),
        ("forward", {**AT, "compression": "zstd"}, "gRPC has gzip"),
        ("forward", {**AT, "ca": "ca.pem"}, "https"),
        ("forward", {"endpoint": "https://collector", "certificate": "c.pem"}, "need each other"),
        ("forward", {"match": "colour=red"}, "forward"),
        ("forward", {"headers": {"a b": "c"}}, "no name of a header"),
        ("forward", {"headers": {"x!y": "c"}}, "no name of a header of grpc"),
        ("forward", {"headers": {"trace-Bin": "c"}}, "no name of a header of grpc"),
        ("forward", {"headers": {"x-key": f"{TOKEN}\nx"}}, "forward.headers.x-key: is not printable"),
        ("forward", {"headers": {"x-key": f"{TOKEN}ö"}}, "forward.headers.x-key: is not printable"),
        ("observe", "b:1", "either observe or upstream"),
        ("processes", 2, "observe takes no clients"),
        ("listener", {"proxy_protocol": "v1"}, PROXIES),
        ("listener", {"proxy_networks": ["10.1.0.0/24"]}, PROXIES),
        ("listeners", [{"listen": "127.0.0.1:0"}], "a port of its own"),
        ("listeners", [{"listen": "a:1", "security_protocol": "SSL"}], "needs tls_certificate"),
        ("listener", {"advertised_port": 65_536}, "less than or equal to 65535"),
        ("quotas", {"window_num": 1}, "quotas.window_num"),
        ("store", {"cluster": {"name": "metrics"}}, "store.cluster needs `clickhouse`"),
        ("store", {"cluster": {"quorum": "most"}}, "store.cluster.quorum"),
        ("store", {"cluster": {"quorum": -1}}, "store.cluster.quorum"),
        ("store", {"compression": "gzip"}, "store.compression"),
        ("store", {"retention_days": {"points": 0}}, "store.retention_days.points"),
        ("clickhouse", "http://a,b", "clickhouse: 'b' is not http"),
        ("clickhouse", f"http://a,http://me:{TOKEN}@b", "a ClickHouse URL must not contain a password"),
        ("clickhouse_tls", {"ca": "/nowhere.pem"}, "clickhouse_tls: cannot use these PEM files"),
        ("clickhouse_tls", {"ca": __file__}, "clickhouse_tls: cannot use these PEM files"),
        ("clickhouse_tls", {"key": "/nowhere.pem"}, "clickhouse_tls: key needs certificate"),
    ],
)
def test_contradictions_are_refused_without_naming_secrets(section: str, settings: Any, fault: str) -> None:
    others = {"observe": {"upstream": "b:1"}, "processes": {"observe": "b:1"}}.get(section, {})
    with pytest.raises(ConfigError) as refused:
        load(None, {section: settings, **others})
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not any(secret in str(refused.value) for secret in (TOKEN, OTHER, SHORT))


def test_ip_quotas_are_off_although_yaml_reads_false(tmp_path: Path) -> None:
    (tmp_path / "headroom.yaml").write_text("gateway: {ip_quotas: off}\n")
    assert load(tmp_path / "headroom.yaml", {}).gateway.ip_quotas == "off"


def test_proxies_of_clients_have_a_version() -> None:
    listener = {"proxy_protocol": "v1", "proxy_networks": ["10.1.0.0/24"]}
    assert load(None, {"listener": listener}).listener.proxy_version == 1


def test_advertised_port_needs_a_fixed_port() -> None:
    settings: dict[str, Any] = {"listener": {"advertised_port": 19_092}}
    config = load(None, {**settings, "listeners": [{"listen": "a:1", "advertised_port": 443}]})
    assert (config.listener.advertised_port, config.listeners[0].advertised_port) == (19_092, 443)
    with pytest.raises(ConfigError, match="needs a fixed port"):
        load(None, {**settings, "listen": "127.0.0.1:0"})


def test_port_and_path_of_forwarding_default_to_otlp() -> None:
    assert load(None, {"forward": {"endpoint": "https://[::1]"}}).forward.target == "[::1]:443"
    http = load(None, {"forward": {"endpoint": "http://c:4318", "protocol": "http"}}).forward
    assert (http.target, http.url) == ("c:4318", "http://c:4318/v1/metrics")
    named = load(None, {"forward": {"endpoint": "http://c:4318/otlp/v1/metrics", "protocol": "http"}}).forward
    assert named.url == "http://c:4318/otlp/v1/metrics"


def test_headers_of_forwarding_have_no_line_end_of_a_file_with_a_secret() -> None:
    config = load(None, {"forward": {"headers": {"authorization": " Bearer t\r\n"}}})
    assert config.forward.headers["authorization"].get_secret_value() == "Bearer t"
    assert load(None, {"forward": {"headers": {"x!y": "c"}, "protocol": "http"}}).forward.headers


def test_cluster_nodes_and_store_options_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", "secret")
    monkeypatch.setenv("HEADROOM_STORE__CLUSTER__NAME", "metrics")
    store = {"compression": "zstd", "retention_days": {"points": 30}, "cluster": {"quorum": "auto"}}
    config = load(None, {"clickhouse": "http://headroom@ch1:8123,https://headroom@ch2", "store": store})
    assert [str(node) for node in config.clickhouse_endpoints] == ["http://ch1:8123", "https://ch2:8443"]
    assert {node.password for node in config.clickhouse_endpoints} == {"secret"}
    assert config.store.options == StoreOptions("metrics", "auto", "zstd", {"points": 30})
    assert config.store.options.client_settings() == {
        "distributed_foreground_insert": "1",
        "distributed_product_mode": "global",
        "insert_quorum": "auto",
        "insert_quorum_timeout": "60000",
    }


def test_single_server_needs_no_settings() -> None:
    config = load(None, {})
    assert (config.clickhouse_endpoints, config.clickhouse_tls.files) == ((), TlsFiles())
    assert (config.store.options, config.store.options.client_settings()) == (StoreOptions(), {})
    assert (config.grpc.listen, config.otlp.grpc, config.otlp.http) == (None, None, None)
