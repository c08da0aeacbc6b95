"""Reference of `impact` and its reason: plain Python, from the table of docs/levels.md."""

import re
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

TIMEOUT_MS = {"apache-kafka-java": 120_000.0, "librdkafka": 300_000.0, "confluent-kafka-python": 300_000.0}


class Felt(NamedTuple):
    """What a client reports of one window, and what the wire saw of it; None: not reported."""

    quota_key: str = "producer_byte_rate"
    software_name: str = "apache-kafka-java"
    client_id: str = "orders"
    muted_ms: float = 0.0
    produce_throttle_ms: float | None = None
    fetch_throttle_ms: float | None = None
    request_latency_ms: float | None = None
    queue_time_ms: float | None = None
    rebalances: float | None = None
    records_lag: float | None = None
    records_failed: float | None = None
    records_refused: float | None = None
    records_retried: float | None = None
    lag_per_min: float | None = None
    top_sender: str = ""
    top_sender_share: float | None = None
    top_receiver: str = ""
    top_receiver_share: float | None = None

    @property
    def is_of_a_producer(self) -> bool:
        return self.quota_key != "consumer_byte_rate"

    @property
    def is_of_a_consumer(self) -> bool:
        return self.quota_key != "producer_byte_rate"

    @property
    def throttle_ms(self) -> float:
        """The longest throttle time of this quota that the client felt."""
        of_producer = self.produce_throttle_ms if self.is_of_a_producer else None
        of_consumer = self.fetch_throttle_ms if self.is_of_a_consumer else None
        return max(of_producer or 0.0, of_consumer or 0.0)

    @property
    def timeout_ms(self) -> float | None:
        is_of_connect = re.match("connector-(dlq-)?producer-", self.client_id)
        return None if is_of_connect or self.is_of_streams else TIMEOUT_MS.get(self.software_name)

    @property
    def is_of_streams(self) -> bool:
        return "-StreamThread-" in self.client_id


def impact_of(felt: Felt) -> tuple[str, str]:
    """The impact and its reason."""
    of_producer = (felt.produce_throttle_ms, felt.request_latency_ms, felt.queue_time_ms, felt.records_failed)
    of_consumer = (felt.fetch_throttle_ms, felt.records_lag)
    reported = (*(of_producer if felt.is_of_a_producer else ()), *(of_consumer if felt.is_of_a_consumer else ()))
    impact = "unknown" if all(value is None for value in reported) else _impact(felt)
    return impact, "; ".join(_reasons(felt))


def _impact(felt: Felt) -> str:
    waited, timeout = felt.queue_time_ms or 0.0, felt.timeout_ms
    if felt.is_of_a_producer:
        has_failed = bool(felt.records_failed or felt.records_refused)
        if (has_failed and not felt.is_of_streams) or (timeout is not None and waited >= timeout):
            return "losing"
        if has_failed or (timeout is not None and waited >= timeout / 2):
            return "falling-behind"
    if _lag_grows(felt):
        return "falling-behind"
    is_throttled = felt.throttle_ms > 0 or felt.muted_ms > 0
    delayed = [
        felt.is_of_a_producer and (waited >= 500 or bool(felt.records_retried)),
        _is_slow(felt),
        felt.is_of_a_consumer and is_throttled and (_lags(felt) or bool(felt.rebalances)),
        felt.throttle_ms > 0 and felt.queue_time_ms is None and felt.records_lag is None,
    ]
    return "delayed" if any(delayed) else "none"


def _lags(felt: Felt) -> bool:
    return felt.is_of_a_consumer and (felt.records_lag or 0.0) >= 1000


def _lag_grows(felt: Felt) -> bool:
    return _lags(felt) and (felt.lag_per_min or 0.0) >= max(100.0, (felt.records_lag or 0.0) / 10)


def _is_slow(felt: Felt) -> bool:
    return felt.is_of_a_producer and (felt.request_latency_ms or 0.0) >= 1000


def _reasons(felt: Felt) -> list[str]:
    reasons = []
    again = ", which Streams processes again" if felt.is_of_streams else ""
    if felt.is_of_a_producer and felt.records_failed:
        reasons.append(f"{_whole(felt.records_failed)} records failed or expired{again}")
    if felt.is_of_a_producer and felt.records_refused:
        reasons.append(f"{_whole(felt.records_refused)} sends found no room in the buffer{again}")
    waited, timeout = felt.queue_time_ms or 0.0, felt.timeout_ms
    if felt.is_of_a_producer and waited >= 500:
        lost = f" of the {_time(timeout)} after which they are lost" if timeout and waited >= timeout / 2 else ""
        reasons.append(f"records waited {_time(waited)} in the producer{lost}")
    if _lags(felt):
        more = f", {_whole(felt.lag_per_min or 0.0)} more each minute" if _lag_grows(felt) else ""
        reasons.append(f"{_whole(felt.records_lag or 0.0)} records behind{more}")
    if felt.is_of_a_producer and felt.records_retried:
        reasons.append(f"{_whole(felt.records_retried)} records sent again")
    if _is_slow(felt):
        reasons.append(f"requests took up to {_time(felt.request_latency_ms or 0.0)}")
    if felt.is_of_a_consumer and felt.rebalances and (felt.throttle_ms > 0 or felt.muted_ms > 0):
        reasons.append(f"{_whole(felt.rebalances)} rebalances")
    if felt.throttle_ms > 0:
        kinds = {"producer_byte_rate": "produce throttle", "consumer_byte_rate": "fetch throttle"}
        reasons.append(f"client felt {kinds.get(felt.quota_key, 'throttle')} {_time(felt.throttle_ms)}")
    return reasons + _busiest(felt)


def _busiest(felt: Felt) -> list[str]:
    sides = {
        "producer_byte_rate": (felt.top_sender, felt.top_sender_share),
        "consumer_byte_rate": (felt.top_receiver, felt.top_receiver_share),
    }
    instance, share = sides.get(felt.quota_key, ("", None))
    if share is None or not 0.5 <= share < 1:
        return []
    return [f"instance {instance} reports {_whole(share * 100)} % of its bytes"]


def _whole(value: float) -> str:
    return str(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP))


def _time(ms: float) -> str:
    if ms < 999.5:
        return f"{_whole(ms)} ms"
    return f"{Decimal(ms / 1000 * 10).quantize(Decimal(1), ROUND_HALF_UP) / 10:.1f} s"
