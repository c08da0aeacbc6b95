"""Headroom's own metrics, read from all parts at each scrape; names come from the catalogue."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from exporters import self_metrics as catalogue
from exporters.self_metrics import SelfMetric, Values
from telemetry.receiver.telemetry_requests import TelemetryReceiver
from telemetry.wire.errors import ErrorCode

Readings = Callable[[], dict[SelfMetric, Values]]
K = TypeVar("K")


class Snapshot(Collector):
    """Values of one moment, which another thread may format. Readings read live state: made in the loop's thread."""

    def __init__(self, *readings: Readings) -> None:
        self._values = [
            (metric, dict(values) if isinstance(values, Mapping) else values)
            for read in readings
            for metric, values in read().items()
        ]

    def totals(self) -> dict[SelfMetric, float]:
        return {metric: float(total(values)) for metric, values in self._values}

    def collect(self) -> Iterator[Metric]:
        for metric, values in self._values:
            family = metric.family()
            for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
                texts = (labels,) if isinstance(labels, str) else labels
                family.add_sample(metric.name, dict(zip(metric.labels, texts, strict=True)), float(value))
            yield family


def total(values: Values) -> float:
    return sum(values.values()) if isinstance(values, Mapping) else values


def receiver_readings(receiver: TelemetryReceiver) -> dict[SelfMetric, Values]:
    gets, pushes = receiver.counts.gets, receiver.counts.pushes
    return {
        catalogue.CLIENT_INSTANCES: len(receiver.rules.instances),
        catalogue.UNKNOWN_SUBSCRIPTIONS: pushes[ErrorCode.UNKNOWN_SUBSCRIPTION_ID],
        catalogue.THROTTLES: sum(answered[ErrorCode.THROTTLING_QUOTA_EXCEEDED] for answered in (gets, pushes)),
        catalogue.PLUGIN_EXPORTS: pushes[ErrorCode.NONE] - receiver.counts.empty_pushes,
        catalogue.PLUGIN_ERRORS: receiver.counts.faults + pushes[ErrorCode.INVALID_RECORD],
        catalogue.GETS: {code.name: count for code, count in gets.items()},
        catalogue.PUSHES: {code.name: count for code, count in pushes.items()},
        catalogue.PUSH_BYTES: receiver.counts.accepted_bytes,
        catalogue.PAYER_REFUSED: {str(resource): count for resource, count in receiver.payers.refused.items()},
    }


def summed(*readings: Readings) -> Readings:
    """A reading that sums the values of several per metric."""
    return lambda: sums(read() for read in readings)


def sums(readings: Iterable[Mapping[K, Values]]) -> dict[K, Values]:
    """The sum of each metric's values, as of several processes."""
    totals: dict[K, Values] = {}
    for metric, values in itertools.chain.from_iterable(reading.items() for reading in readings):
        before = totals.get(metric)
        if isinstance(before, Mapping) and isinstance(values, Mapping):
            totals[metric] = {label: before.get(label, 0) + values.get(label, 0) for label in (*before, *values)}
        elif before is None or isinstance(before, Mapping) or isinstance(values, Mapping):
            totals[metric] = values
        else:
            totals[metric] = before + values
    return totals
