"""`headroom serve` in front of a secured cluster: flags, tables that name the user, and no password anywhere."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.secure_clients import LibrdkafkaClient
from tests.kit.secure_cluster import SecureCluster
from tests.kit.serving import Served, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse, pytest.mark.timeout(300)]


def rows(served: Served, query: str) -> list[str]:
    with urllib.request.urlopen(f"http://{served.sql}/", query.encode(), timeout=30) as answer:
        return str(answer.read().decode()).splitlines()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_tables_name_the_user_and_nothing_has_a_password(
    processes: str, tmp_path: Path, secure_cluster: SecureCluster, new_secure_topic: Callable[[str], str]
) -> None:
    topic = new_secure_topic(f"served-{processes}")
    certificate, key = secure_cluster.authority.issue("served")
    arguments = ["--upstream", secure_cluster.bootstrap("SASL_SSL"), "--processes", processes]
    arguments += ["--command-config", str(secure_cluster.command_config("SASL_SSL"))]
    arguments += ["--security-protocol", "SASL_SSL", "--tls-certificate", str(certificate), "--tls-key", str(key)]
    settings = tmp_path / "subscriptions.yaml"
    settings.write_text("all:\n  metrics: '*'\n  interval.ms: 500\n")
    config = tmp_path / "config.yaml"
    config.write_text(f"subscriptions: {settings}\n")
    client = {"security.protocol": "sasl_ssl", "ssl.ca.location": str(secure_cluster.authority.ca)}
    client |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "alice-secret"}
    with Served(tmp_path, *arguments, "--config", str(config)) as served:
        one = LibrdkafkaClient(served.kafka, "served", client)
        one.produce(topic, [b"value"] * 500, pause_s=3.0)
        with pytest.raises(AssertionError):
            LibrdkafkaClient(served.kafka, "wrong", client | {"sasl.password": "wrong-secret"}).produce(topic, [b"x"])
        for table in ("quota_usage", "client_metrics"):
            column = "user" if table == "quota_usage" else "principal"
            query = f"SELECT DISTINCT {column} FROM headroom.{table} WHERE client_id = 'served'"
            assert eventually(lambda query=query: rows(served, query), bool) == ["alice"]  # type: ignore[misc]
            assert rows(served, f"SELECT count() FROM headroom.{table} WHERE client_id = 'wrong'") == ["0"]
    found = subprocess.run(
        ["grep", "-r", "-l", "-a", "-E", "(alice|wrong|admin)-secret", str(tmp_path)], capture_output=True, text=True
    )
    assert found.stdout == ""
