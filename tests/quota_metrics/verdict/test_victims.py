"""Clients that are slow because of another one."""

from collections.abc import Iterable
from typing import NamedTuple

import pytest

from quota_metrics.verdict.client_signals import metrics_of
from quota_metrics.verdict.victims import ClientUsage, Victim, heavy_clients, slowed, victims

WINDOWS, MINUTE_MS = 10, 60_000
NEWEST = (WINDOWS - 1) * MINUTE_MS
PRODUCE = "producer_byte_rate"


class Client(NamedTuple):
    """`rates`, `latencies`: of the first seven windows and of the last three, in which the heavy client runs."""

    client_id: str
    rates: tuple[float, float] = (100.0, 100.0)
    latencies: tuple[float | None, float | None] = (20.0, 900.0)
    is_throttled: bool = False
    broker_id: int = 1
    since: int = 0  # its first window

    def usage(self) -> list[ClientUsage]:
        at, client = ("prod", "gateway", self.broker_id), ("u", self.client_id)
        return [
            ClientUsage(
                at, client, PRODUCE, window * MINUTE_MS, self.rates[window >= 7], window >= 7 and self.is_throttled
            )
            for window in range(self.since, WINDOWS)
        ]

    def latencies_ms(self) -> dict[int, float]:
        of_window = {window * MINUTE_MS: self.latencies[window >= 7] for window in range(self.since, WINDOWS)}
        return {start_ms: latency for start_ms, latency in of_window.items() if latency is not None}


def of(clients: Iterable[Client]) -> list[Victim]:
    members = list(clients)
    latencies = {("prod", "gateway", ("u", client.client_id)): client.latencies_ms() for client in members}
    return victims([row for client in members for row in client.usage()], latencies, NEWEST)


HEAVY = Client("heavy", rates=(50.0, 5000.0), latencies=(10.0, 800.0))


def test_a_victim_is_slow_while_a_heavy_client_runs() -> None:
    clients = [
        HEAVY,
        Client("victim"),
        Client("throttled", is_throttled=True),
        Client("as fast as before", latencies=(20.0, 30.0)),
        Client("always slow", latencies=(900.0, 950.0)),
        Client("silent", latencies=(None, None)),
        Client("silent now", latencies=(20.0, None)),
        Client("new", since=5),
        Client("at another broker", broker_id=2, rates=(10.0, 10.0)),
        Client("steady at the other broker", broker_id=2, rates=(900.0, 900.0), latencies=(20.0, 20.0)),
        Client("small beside many", broker_id=3, rates=(10.0, 10.0)),
        *(Client(f"one of many {n}", broker_id=3, rates=(10.0, 40.0), latencies=(20.0, 20.0)) for n in range(3)),
    ]
    assert of(clients) == [Victim("prod", "gateway", "u", "victim", "u", "heavy", 1, 900.0, 20.0)]


def test_of_two_heavy_clients_the_greater_one_is_named() -> None:
    victim = Client("victim")
    elsewhere = [victim._replace(broker_id=2), HEAVY._replace(client_id="heavier", broker_id=2, rates=(50.0, 9000.0))]
    assert [row.slowed_by_client_id for row in of([HEAVY, victim, *elsewhere])] == ["heavier"]


def test_usage_of_both_directions_counts_and_of_other_quotas_not() -> None:
    usage = [row._replace(usage=30.0) for row in HEAVY.usage()]
    both = [*usage, *(row._replace(quota_key="consumer_byte_rate") for row in usage), *Client("other").usage()]
    assert heavy_clients(both, NEWEST)["prod", "gateway", 1].client == ("u", "other")
    requests = [row._replace(quota_key="request_percentage", usage=1e9) for row in usage]
    assert heavy_clients([*both, *requests], NEWEST)["prod", "gateway", 1].rate == 100.0


@pytest.mark.parametrize(
    ("quiet", "during", "before"),
    [
        ([20.0] * 3, 120.0, 20.0),
        ([20.0] * 3, 119.0, None),  # not 100 ms more
        ([200.0] * 3, 399.0, None),  # not twice as long
        ([20.0] * 2, 900.0, None),  # too few windows without the heavy client
        ([1.0, 2.0, 3.0, 4.0], 900.0, 3.0),
    ],
)
def test_how_much_slower(quiet: list[float], during: float, before: float | None) -> None:
    latencies = {NEWEST: during, **{ago * MINUTE_MS: latency for ago, latency in enumerate(quiet)}}
    assert slowed(latencies, {NEWEST}, NEWEST) == (None if before is None else (during, before))


def test_what_a_consumer_waits_for_records_is_no_latency() -> None:
    assert all(metric.startswith("org.apache.kafka.producer.") for metric in metrics_of("request_latency_ms"))
