"""One supervisor for every kind of child process. Messages arrive unchanged, secrets included, and nothing else does.
Which exchanges a network process reports, and that their number is bounded."""

import asyncio
import itertools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from exporters.model import Exchange
from headroom.config.settings import Address, ServeConfig
from headroom.config.sources import load
from headroom.demo.processes import LOOPBACK
from headroom.server.processes.child_supervisor import ChildError, ChildProcess, ChildValues
from headroom.server.processes.messages import (
    Message,
    config_message,
    exchanges_of,
    line_of,
    message_of,
    subscriptions_message,
)
from headroom.server.processes.network_process import ExchangeLog
from quota_metrics.measure.usage_meter import UsageMeter
from telemetry.subscriptions.kip714_rules import ClientMetrics
from tests.kit.grpc_servers import in_loop, until

PATIENCE_S = 60.0
HEAD = "import json, os, sys, time\nfirst = json.loads(sys.stdin.readline())\n"
SAY = "def say(**message): print(json.dumps(message), flush=True)\n"
UNTIL_STOP = "for line in sys.stdin:\n    if 'stop' in line: break\n"


def scripted(script: str, **values: Any) -> ChildValues:
    return ChildValues("the process", (sys.executable, "-c", HEAD + SAY + script), **values)


@in_loop
async def test_messages_pass_both_ways_and_stop_ends_it() -> None:
    heard: list[Message] = []
    script = "say(ready=True, got=first)\n" + UNTIL_STOP + "say(last=line)\n"
    child = ChildProcess(scripted(script), first=lambda: {"number": 7}, heard=heard.append)
    await child.start()
    assert child.alive
    watching = asyncio.create_task(child.watch())
    assert await child.stop(PATIENCE_S)
    await watching
    assert (child.alive, child.restarts) == (False, 0)
    assert heard == [{"ready": True, "got": {"number": 7}}, {"last": '{"stop":true}\n'}]


@in_loop
async def test_dead_process_is_restarted_with_its_first_message_until_a_start_succeeds() -> None:
    numbers, ended = itertools.count(), list[int]()
    script = "if first['n'] in (1, 2): sys.exit(1)\nsay(ready=True)\nif first['n'] == 0: os._exit(3)\n" + UNTIL_STOP
    child = ChildProcess(
        scripted(script, restart_after_s=0.01), first=lambda: {"n": next(numbers)}, ended=lambda: ended.append(1)
    )
    watching = asyncio.create_task(child.watch())  # starts it, too
    await until(lambda: child.alive and child.restarts == 1)
    assert (ended, next(numbers)) == ([1], 4)
    assert await child.stop(PATIENCE_S)
    await watching
    assert ended == [1, 1]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("say(error='no room'); sys.exit(1)", "no room"),
        ("sys.exit(4)", "the process ended with code 4: asked 4"),
        ("time.sleep(60)", "the process was not ready within 0 s"),
    ],
)
@in_loop
async def test_process_that_does_not_start_is_an_error(script: str, message: str) -> None:
    timeout_s = 0.3 if "sleep" in script else PATIENCE_S
    child = ChildProcess(scripted(script, start_timeout_s=timeout_s, cause=lambda code: f"asked {code}"))
    with pytest.raises(ChildError) as failed:
        await child.start()
    assert str(failed.value) == message
    assert not child.alive


@in_loop
async def test_program_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ChildError, match="cannot start the process: No such file"):
        await ChildProcess(ChildValues("the process", ("/nowhere/at/all",))).start()


@in_loop
async def test_silent_process_is_killed() -> None:
    child = ChildProcess(scripted("say(ready=True)\ntime.sleep(60)", silent_s=2.0, restart_after_s=0.01))
    await child.start()
    watching = asyncio.create_task(child.watch())
    await until(lambda: child.restarts == 1)
    await child.stop(0.1)
    await watching


@in_loop
async def test_process_is_not_killed_when_the_event_loop_is_busy() -> None:
    script = "say(ready=True)\nwhile True:\n    say(tick=1)\n    time.sleep(0.05)\n"
    heard: list[Message] = []
    child = ChildProcess(scripted(script, silent_s=3.0), heard=heard.append)
    await child.start()
    watching = asyncio.create_task(child.watch())
    time.sleep(4.0)  # noqa: ASYNC251 - blocks the loop for longer than the limit
    before = len(heard)
    await until(lambda: len(heard) > before)
    assert child.restarts == 0
    assert not await child.stop(0.1)  # it ignores the request, and is killed
    await watching


@in_loop
async def test_process_without_messages_is_ready_when_it_answers_and_stops_by_sigterm(tmp_path: Path) -> None:
    mark, output = tmp_path / "mark", tmp_path / "output"
    argv = (
        sys.executable,
        "-c",
        f"import time\nprint('said', flush=True)\nopen({str(mark)!r}, 'w')\ntime.sleep(60)",
    )
    child = ChildProcess(ChildValues("the server", argv, answers=mark.exists, output=output))
    await child.start()
    watching = asyncio.create_task(child.watch())
    assert await child.stop(PATIENCE_S)
    await watching
    assert output.read_text() == "said\n"


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
    reported = message_of(line_of({"config": config_message(ours, Address(host="::1", port=1234))}))
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
    first = line_of({"config": config, "cluster": "test", "number": 1, "listeners": [], **rules})
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
    reported = orjson.loads(line_of(subscriptions_message(rules, 1_000)))
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
    changes = (("orders", 20, 20, True), ("carts", 4, -1, False))
    log.exchange(Exchange("alice", "app", "10.0.0.1", 2, 19, 100, 20, 0, 7, changes))
    log.exchange(Exchange("alice", "app", "10.0.0.1", 2, 19, 100, 20, 0, 7))  # the controller refused
    message = message_of(line_of({"exchanges": log.take()}))
    assert message is not None
    for taken in exchanges_of(message):
        meter.exchange(taken)
    (row,) = meter.samples(7)
    assert (row.rate, meter.topics.unknown, len(message["exchanges"])) == (2.0, 1, 1)


def test_names_of_topics_count_towards_the_limit() -> None:
    due: list[int] = []
    log = ExchangeLog(lambda: due.append(1))
    changes = tuple((f"{n:0>249}", 1, 1, False) for n in range(1_200))
    log.exchange(Exchange("alice", "app", "10.0.0.1", 2, 19, 100, 20, 0, 7, changes))
    assert due == [1]
