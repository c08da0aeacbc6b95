"""headroom/server/processes/messages.py: messages arrive unchanged, secrets included, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from headroom.config.settings import Address, ServeConfig
from headroom.config.sources import load
from headroom.demo.processes import LOOPBACK
from headroom.server.processes.messages import config_message, line, message_of, subscriptions_message
from telemetry.subscriptions.kip714_rules import ClientMetrics

SETTINGS = """
upstream: [broker1:9092, "[::1]:9093"]
subscriptions: some/file.yaml
clickhouse: http://user@server/headroom
clickhouse_password: secret
gateway: {advertised_host: gateway.example, drain_ms: 7}
grpc: {listen: "127.0.0.1:9095", token: 0123456789012345678901234567890123456789}
web: {trusted_proxies: [10.0.0.0/8], token: 0123456789012345678901234567890123456789}
quotas:
  jmx: {targets: [{broker_id: 1, agent: jolokia, url: "http://broker1:8778/jolokia"}]}
  metrics: {enabled: true}
  callback: some.module:function
"""


def test_child_process_uses_the_parents_settings_and_not_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_text(SETTINGS)
    ours = load(file, {"processes": 3})
    reported = message_of(line({"config": config_message(ours, Address(host="::1", port=1234))}))
    monkeypatch.setenv("HEADROOM_PROCESSES", "7")
    monkeypatch.setenv("HEADROOM_GATEWAY__DRAIN_MS", "8")
    assert reported is not None
    child = ServeConfig(**reported["config"])
    assert child.listen == Address(host="::1", port=1234)
    assert (child.clickhouse_password, child.grpc, child.web) == (None, ServeConfig().grpc, ServeConfig().web)
    kept = {"listen", "clickhouse_password", "grpc", "web"}
    assert child.model_dump(exclude=kept) == ours.model_dump(exclude=kept)


def test_child_reports_that_it_cannot_open_the_spool(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("no directory")
    config = config_message(load(None, {"data": tmp_path}), Address(host=LOOPBACK, port=0))
    rules = subscriptions_message(ClientMetrics(new_id=lambda: bytes(16)), 1_000)
    first = line({"config": config, "cluster": "test", "number": 1, "listeners": [], **rules})
    child = subprocess.run(
        [sys.executable, "-m", "headroom.server.processes.network_process"],
        input=first,
        capture_output=True,
        check=False,
    )
    error = f"cannot open the spool in {tmp_path}: File exists"
    assert (child.returncode, message_of(child.stdout)) == (1, {"error": error})


@pytest.mark.parametrize("torn", [b"", b"{", b'{"stop": true}'])
def test_truncated_line_is_ignored(torn: bytes) -> None:
    assert message_of(torn) is None


def test_subscriptions_are_sent_in_rule_order_including_invalid_ones() -> None:
    rules = ClientMetrics(new_id=lambda: bytes(16))
    names = ["a", "b", "d", "c", "broken"]
    resources = {name: {"metrics": "x"} for name in names} | {"broken": {"interval.ms": "1"}}
    rules.replace_all(resources, now_ms=5)
    reported = orjson.loads(line(subscriptions_message(rules, 1_000)))
    assert list(reported["subscriptions"]) == [*rules.subscriptions, "broken"]
    assert reported == {"subscriptions": resources, "changed_at_ms": 5, "telemetry_max_bytes": 1_000}
