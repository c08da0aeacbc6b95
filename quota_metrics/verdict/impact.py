"""What a client feels, by its own telemetry beside what the wire saw: `impact` and `impact_reason`.

A producer is judged for producer_byte_rate, a consumer for consumer_byte_rate, both for other quotas. In words:
docs/levels.md.
"""

from typing import Final, NamedTuple

from exporters.model import QuotaKey
from quota_metrics.verdict.client_signals import DELIVERY_TIMEOUT_MS, LOSES_NOTHING_BY_WAITING, OF_STREAMS
from quota_metrics.verdict.number_words import duration, rounded
from quota_metrics.verdict.window import Telemetry, Window

HARMS: Final = ("delayed", "falling-behind", "losing")  # least harm first
IMPACTS: Final = ("unknown", "none", *HARMS)  # numbers on /metrics: from -1 on; `unknown` without telemetry

_NONE, _DELAYED, _FALLING_BEHIND, _LOSING = IMPACTS[1:]
_LAG: Final = 1_000.0  # records: a consumer that is throttled and has fewer to fetch is not delayed
_LAG_GROWTH: Final = 0.1  # share of its lag by which it grows in a minute when a consumer falls behind
_LEAST_GROWTH: Final = 100.0  # records per minute
_WAITS_MS: Final = 500.0  # records that wait longer in a producer are delayed: well above linger.ms of real producers
_SLOW_MS: Final = 1_000.0  # request latency of a delayed producer: requests of librdkafka wait at the broker
_NEAR_TIMEOUT: Final = 0.5  # share of the delivery timeout that records wait when a producer falls behind
_MOST: Final = 0.5  # share of its client's bytes from which an instance is named
_SILENT: Final = Telemetry()


def number_of_impact(impact: str) -> float:
    """The impact's value on /metrics, from -1 on; -1 for one that no release computes."""
    return float(IMPACTS.index(impact) - 1) if impact in IMPACTS else -1.0


def impact_text(impact: str, impact_reason: str) -> str:
    if impact == "unknown":
        return "unknown: no telemetry in this minute says it"
    return f"{impact}: {impact_reason}" if impact_reason else impact


class Impact(NamedTuple):
    """What a client feels of its quota in a window, and which of its instances has most of its bytes."""

    impact: str = "unknown"
    reason: str = ""
    throttle_ms: float | None = None  # the throttle time that the client felt from this quota
    busiest_instance: str = ""  # '' when it is the only one
    busiest_instance_share: float | None = None


class Symptom(NamedTuple):
    """Something that a client reports, and how bad it is."""

    impact: str
    text: str


def impact_of(window: Window, software_name: str, reported: Telemetry) -> Impact:
    """The impact is that of the worst symptom; the reason names all of them."""
    if reported == _SILENT:
        return Impact()
    is_producer = window.quota_key != QuotaKey.CONSUMER_BYTE_RATE
    is_consumer = window.quota_key != QuotaKey.PRODUCER_BYTE_RATE
    produce = reported.produce_throttle_ms if is_producer else None
    fetch = reported.fetch_throttle_ms if is_consumer else None
    throttle_ms = max([felt_ms for felt_ms in (produce, fetch) if felt_ms is not None], default=None)
    is_throttled = window.muted_ms > 0 or (throttle_ms is not None and throttle_ms > 0)
    instance, share = _busiest(window.quota_key, reported)
    symptoms = [
        *(_of_failed_records(reported, window.client_id) if is_producer else ()),
        *(_of_waiting_records(reported, software_name, window.client_id) if is_producer else ()),
        *(_of_lag(reported, is_throttled) if is_consumer else ()),
        *(_of_requests(reported) if is_producer else ()),
        *(_of_rebalances(reported) if is_consumer and is_throttled else ()),
        *_of_throttling(window.quota_key, reported, throttle_ms),
    ]
    if share is not None and share >= _MOST:
        symptoms.append(Symptom(_NONE, f"instance {instance} reports {rounded(share * 100)} % of its bytes"))
    impact = "unknown"
    if _tells(reported, is_producer, is_consumer):
        impact = max([symptom.impact for symptom in symptoms], key=IMPACTS.index, default=_NONE)
    reason = "; ".join([symptom.text for symptom in symptoms])
    return Impact(impact, reason, throttle_ms, instance, share)


def _tells(reported: Telemetry, is_producer: bool, is_consumer: bool) -> bool:
    """Whether it reports anything by which that side is judged: a librdkafka consumer has neither lag nor throttle
    times, so nobody knows."""
    of_producer = (
        reported.produce_throttle_ms, reported.request_latency_ms, reported.queue_time_ms, reported.records_failed,
    )  # fmt: skip
    of_consumer = reported.fetch_throttle_ms, reported.records_lag
    return (is_producer and any(value is not None for value in of_producer)) or (
        is_consumer and any(value is not None for value in of_consumer)
    )


def _busiest(quota_key: str, reported: Telemetry) -> tuple[str, float | None]:
    """Who of several instances sends or receives most."""
    instance, share = "", None
    if quota_key == QuotaKey.PRODUCER_BYTE_RATE:
        instance, share = reported.top_sender, reported.top_sender_share
    elif quota_key == QuotaKey.CONSUMER_BYTE_RATE:
        instance, share = reported.top_receiver, reported.top_receiver_share
    return (instance, share) if share is not None and share < 1 else ("", None)


# The symptoms, in the order of the reason.


def _of_failed_records(reported: Telemetry, client_id: str) -> list[Symptom]:
    symptoms = []
    impact, again = (_FALLING_BEHIND, ", which Streams processes again") if OF_STREAMS in client_id else (_LOSING, "")
    if (failed := reported.records_failed) is not None and failed > 0:
        symptoms.append(Symptom(impact, f"{rounded(failed)} records failed or expired{again}"))
    if (refused := reported.records_refused) is not None and refused > 0:
        symptoms.append(Symptom(impact, f"{rounded(refused)} sends found no room in the buffer{again}"))
    return symptoms


def _of_waiting_records(reported: Telemetry, software_name: str, client_id: str) -> list[Symptom]:
    waits_ms = reported.queue_time_ms
    if waits_ms is None or waits_ms < _WAITS_MS:
        return []
    text = f"records waited {duration(waits_ms)} in the producer"
    timeout_ms = None if LOSES_NOTHING_BY_WAITING.search(client_id) else DELIVERY_TIMEOUT_MS.get(software_name)
    if timeout_ms is None or waits_ms < _NEAR_TIMEOUT * timeout_ms:
        return [Symptom(_DELAYED, text)]
    text += f" of the {duration(timeout_ms)} after which they are lost"
    return [Symptom(_LOSING if waits_ms >= timeout_ms else _FALLING_BEHIND, text)]


def _of_lag(reported: Telemetry, is_throttled: bool) -> list[Symptom]:
    lag, growth = reported.records_lag, reported.lag_per_min
    if lag is None or lag < _LAG:
        return []
    text = f"{rounded(lag)} records behind"
    if growth is not None and growth >= _LEAST_GROWTH and growth >= _LAG_GROWTH * lag:
        return [Symptom(_FALLING_BEHIND, f"{text}, {rounded(growth)} more each minute")]
    return [Symptom(_DELAYED if is_throttled else _NONE, text)]


def _of_requests(reported: Telemetry) -> list[Symptom]:
    symptoms = []
    if (retried := reported.records_retried) is not None and retried > 0:
        symptoms.append(Symptom(_DELAYED, f"{rounded(retried)} records sent again"))
    latency_ms = reported.request_latency_ms
    if latency_ms is not None and latency_ms >= _SLOW_MS:
        symptoms.append(Symptom(_DELAYED, f"requests took up to {duration(latency_ms)}"))
    return symptoms


def _of_rebalances(reported: Telemetry) -> list[Symptom]:
    rebalances = reported.rebalances
    return [] if rebalances is None or rebalances <= 0 else [Symptom(_DELAYED, f"{rounded(rebalances)} rebalances")]


def _of_throttling(quota_key: str, reported: Telemetry, throttle_ms: float | None) -> list[Symptom]:
    """Throttling that neither a queue nor a lag puts into proportion counts as delay."""
    if throttle_ms is None or throttle_ms <= 0:
        return []
    kind = "throttle"
    if quota_key == QuotaKey.PRODUCER_BYTE_RATE:
        kind = "produce throttle"
    elif quota_key == QuotaKey.CONSUMER_BYTE_RATE:
        kind = "fetch throttle"
    is_alone = reported.queue_time_ms is None and reported.records_lag is None
    return [Symptom(_DELAYED if is_alone else _NONE, f"client felt {kind} {duration(throttle_ms)}")]
