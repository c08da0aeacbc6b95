"""Recordings as the gateway writes them, made of bytes per second: no clock, no cluster."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporters.model import Exchange, QuotaLimit, UsageSample
from quota_metrics.measure.usage_meter import PRODUCE, UsageMeter
from quota_metrics.simulation.usage import ClientAtBroker, Recorded
from quota_metrics.simulation.usage import recorded as as_columns

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
START_MS = 1_800_000_000_000
SECOND = 1000


@dataclass(frozen=True)
class Used:
    """The bytes that a client sent in each second, and the throttle time reported to it."""

    user: str
    client_id: str
    byte_counts: Sequence[int]
    throttle_ms: int = 0
    broker_id: int = 1
    api_key: int = PRODUCE


def recorded(*loads: Used) -> list[UsageSample]:
    """The gateway's rows: ten requests a second."""
    meter = UsageMeter("c")
    rows: list[UsageSample] = []
    for second in range(max(len(load.byte_counts) for load in loads)):
        now_ms = START_MS + second * SECOND
        for tenth in range(10):
            for load in loads:
                exchange(meter, load, second, tenth, now_ms + tenth * 100)
        rows += meter.samples(now_ms + SECOND)
    return rows


def columns(rows: Iterable[UsageSample]) -> dict[ClientAtBroker, Recorded]:
    of_client: dict[ClientAtBroker, list[UsageSample]] = {}
    for row in rows:
        of_client.setdefault(ClientAtBroker(row.quota_key, row.user, row.client_id, row.broker_id), []).append(row)
    return {
        client: as_columns(
            [row.ts_ms for row in found],
            [row.interval_ms for row in found],
            [row.bytes for row in found],
            [row.muted_ms for row in found],
            [row.throttle_ms for row in found],
        )
        for client, found in of_client.items()
    }


def exchange(meter: UsageMeter, load: Used, second: int, tenth: int, now_ms: int) -> None:
    size = load.byte_counts[second] // 10 if second < len(load.byte_counts) else 0
    throttle_ms = load.throttle_ms if tenth == 0 else 0
    if size or throttle_ms:
        meter.exchange(
            Exchange(
                principal=load.user,
                client_id=load.client_id,
                address="",
                broker_id=load.broker_id,
                api_key=load.api_key,
                request_bytes=size,
                response_bytes=size,
                throttle_ms=throttle_ms,
                now_ms=now_ms,
            )
        )


def limit(user: str, client_id: str, value: float | None, since_s: int = -60, key: str = PRODUCER) -> QuotaLimit:
    return QuotaLimit("c", user, client_id, "", key, START_MS + since_s * SECOND, value)
