"""Settings of the store: nodes of a cluster, TLS, quorum, retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exporters.clickhouse.connection import TlsFiles
from exporters.clickhouse.options import StoreOptions
from headroom.config.settings import ConfigError
from headroom.config.sources import load

NODES = "http://headroom@ch1:8123,https://headroom@ch2"


def test_cluster_nodes_and_store_options_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", "secret")
    monkeypatch.setenv("HEADROOM_STORE__CLUSTER__NAME", "metrics")
    store = {"compression": "zstd", "retention_days": {"points": 30}, "cluster": {"quorum": "auto"}}
    config = load(None, {"clickhouse": NODES, "store": store})
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
    assert config.clickhouse_endpoints == ()
    assert config.clickhouse_tls.files == TlsFiles()
    assert config.store.options == StoreOptions()
    assert config.store.options.client_settings() == {}


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ({"store": {"cluster": {"name": "metrics"}}}, "store.cluster needs `clickhouse`"),
        ({"clickhouse": "http://a,b"}, "clickhouse: 'b' is not http"),
        ({"clickhouse": "http://a,http://me:secret@b"}, "a ClickHouse URL must not contain a password"),
        ({"store": {"cluster": {"quorum": "most"}}}, "store.cluster.quorum"),
        ({"store": {"cluster": {"quorum": -1}}}, "store.cluster.quorum"),
        ({"store": {"compression": "gzip"}}, "store.compression"),
        ({"store": {"retention_days": {"points": 0}}}, "store.retention_days.points"),
        ({"clickhouse_tls": {"ca": "/nowhere.pem"}}, "clickhouse_tls: cannot use these PEM files"),
        ({"clickhouse_tls": {"key": "/nowhere.pem"}}, "clickhouse_tls: key needs certificate"),
    ],
)
def test_invalid_store_settings_are_reported(flags: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, flags)
    assert fault in "; ".join(refused.value.faults)


def test_invalid_certificate_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate\n")
    with pytest.raises(ConfigError, match="cannot use these PEM files"):
        load(None, {"clickhouse_tls": {"ca": str(tmp_path / "ca.pem")}})
