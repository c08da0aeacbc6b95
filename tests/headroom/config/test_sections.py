"""Rules between the settings of a section: what is refused, and what follows from valid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporters.clickhouse.connection import StoreOptions, TlsFiles
from headroom.config.settings import ConfigError
from headroom.config.sources import load

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
        ("observe", "b:1", "either observe or upstream"),
        ("processes", 2, "observe takes no clients"),
        ("listener", {"proxy_protocol": "v1"}, PROXIES),
        ("listener", {"proxy_networks": ["10.1.0.0/24"]}, PROXIES),
        ("listeners", [{"listen": "127.0.0.1:0"}], "a port of its own"),
        ("listeners", [{"listen": "a:1", "security_protocol": "SSL"}], "needs tls_certificate"),
        ("gateway", {"advertised_port": 65_536}, "less than or equal to 65535"),
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
    settings: dict[str, Any] = {"gateway": {"advertised_port": 19_092}}
    config = load(None, {**settings, "listeners": [{"listen": "a:1", "advertised_port": 443}]})
    assert (config.gateway.advertised_port, config.listeners[0].advertised_port) == (19_092, 443)
    with pytest.raises(ConfigError, match="needs a fixed port"):
        load(None, {**settings, "listen": "127.0.0.1:0"})


def test_port_and_path_of_forwarding_default_to_otlp() -> None:
    assert load(None, {"forward": {"endpoint": "https://[::1]"}}).forward.target == "[::1]:443"
    http = load(None, {"forward": {"endpoint": "http://c:4318", "protocol": "http"}}).forward
    assert (http.target, http.url) == ("c:4318", "http://c:4318/v1/metrics")
    named = load(None, {"forward": {"endpoint": "http://c:4318/otlp/v1/metrics", "protocol": "http"}}).forward
    assert named.url == "http://c:4318/otlp/v1/metrics"


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
