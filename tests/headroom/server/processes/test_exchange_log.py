"""headroom/server/processes/network_process.py: which exchanges a network process reports, and that their number is
bounded."""

from __future__ import annotations

from exporters.model import Exchange
from headroom.server.processes.messages import exchanges_of, line, message_of
from headroom.server.processes.network_process import ExchangeLog
from quota_metrics.measure.usage_meter import UsageMeter

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
