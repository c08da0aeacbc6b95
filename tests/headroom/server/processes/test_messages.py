"""headroom/server/processes/messages.py: messages arrive unchanged, secrets included, and nothing else does; which
exchanges a network process reports, and that their number is bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from exporters.model import Exchange
from headroom.config.settings import Address, ServeConfig
from headroom.config.sources import load
from headroom.demo.processes import LOOPBACK
from headroom.server.processes.messages import config_message, exchanges_of, line, message_of, subscriptions_message
from headroom.server.processes.network_process import ExchangeLog
from quota_metrics.measure.usage_meter import UsageMeter
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


PRODUCE, METADATA = 0, 3
NAME = "n" * 32_000


def exchange(log: ExchangeLog, api_key: int, *, client_id: str = "app", throttle_ms: int = 0) -> None:
    log.exchange(Exchange("alice", client_id, "10.0.0.1", 2, api_key, 100, 20, throttle_ms, 7))


def test_unmetered_exchanges_are_omitted() -> None:
    log = ExchangeLog(lambda: None)
    exchange(log, METADATA)
    exchange(log, METADATA, throttle_ms=5)
    exchange(log, PRODUCE)
    assert [(taken.api_key, taken.throttle_ms) for taken in log.take()] == [(METADATA, 5), (PRODUCE, 0)]
    assert (log.take(), log.left_out) == ([], 0)


def test_large_logs_are_sent_early() -> None:
    reported: list[int] = []
    log = ExchangeLog(lambda: reported.append(len(log.take())))
    for _ in range(2_000):
        exchange(log, PRODUCE)
    assert reported == [1_000, 1_000]
    for _ in range(9):
        exchange(log, PRODUCE, client_id=NAME)
    assert reported[2:] == [9]


def test_memory_is_bounded_when_the_parent_reads_nothing() -> None:
    log = ExchangeLog(lambda: None)
    for _ in range(1_000):
        exchange(log, PRODUCE, client_id=NAME)
    assert sum(len(client_id) for _, client_id, *_ in log.take()) < 6_000_000
    for _ in range(25_000):
        exchange(log, PRODUCE)
    assert len(log.take()) == 20_000
    assert log.left_out == 1_000 - 160 + 5_000


def test_changes_of_topics_reach_the_parents_meter() -> None:
    log, meter = ExchangeLog(lambda: None), UsageMeter("c")
    log.exchange(Exchange("alice", "app", "10.0.0.1", 2, 19, 100, 20, 0, 7, (("orders", 20, 20), ("carts", 4, -1))))
    log.exchange(Exchange("alice", "app", "10.0.0.1", 2, 19, 100, 20, 0, 7))  # the controller refused
    message = message_of(line({"exchanges": log.take()}))
    assert message is not None
    for taken in exchanges_of(message):
        meter.exchange(taken)
    (row,) = meter.samples(7)
    assert (row.rate, meter.topics.unknown, len(message["exchanges"])) == (2.0, 1, 1)


def test_names_of_topics_count_towards_the_limit() -> None:
    due: list[int] = []
    log = ExchangeLog(lambda: due.append(1))
    changes = tuple((f"{n:0>249}", 1, 1) for n in range(1_200))
    log.exchange(Exchange("alice", "app", "10.0.0.1", 2, 19, 100, 20, 0, 7, changes))
    assert due == [1]
