"""Converts OTLP histograms, exponential histograms and summaries to one kind of row. Sans-I/O.

Kafka clients do not send them today; applications that use the same receiver do. Fields that a point does not have
(sum, min, max) are None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from telemetry.decode.series import Attributes

_INT8 = range(-128, 128)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The measured part of a row of client_histograms, for all kinds."""

    count: int
    sum: float | None
    min: float | None
    max: float | None
    bounds: Sequence[float] = ()
    bucket_counts: Sequence[int] = ()
    scale: int = 0
    zero_count: int = 0
    zero_threshold: float = 0.0
    pos_offset: int = 0
    pos_counts: Sequence[int] = ()
    neg_offset: int = 0
    neg_counts: Sequence[int] = ()
    quantiles: Sequence[tuple[float, float]] = ()


class Histogram(NamedTuple):
    """A row of client_histograms without the columns of the connection."""

    metric: str
    ts_ms: int
    series_id: int
    kind: str  # 'histogram' | 'exp_histogram' | 'summary'
    temporality: str
    flags: int
    interval_ms: int
    unit: str
    attributes: Attributes
    resource: Attributes
    distribution: Distribution


def bucket_count(point: Any) -> int:
    """The number of counts, bounds or quantiles of a point of any kind."""
    if hasattr(point, "bucket_counts"):
        return len(point.bucket_counts) + len(point.explicit_bounds)
    if hasattr(point, "positive"):
        return len(point.positive.bucket_counts) + len(point.negative.bucket_counts)
    return len(point.quantile_values)


def _explicit(point: Any) -> Distribution:
    return Distribution(
        point.count,
        *_optional(point),
        bounds=list(point.explicit_bounds),
        bucket_counts=list(point.bucket_counts),
    )


def _exponential(point: Any) -> Distribution:
    if point.scale not in _INT8:  # OpenTelemetry's own range is -10 to 20
        raise ValueError(f"cannot store an exponential histogram of scale {point.scale}")
    return Distribution(
        point.count,
        *_optional(point),
        scale=point.scale,
        zero_count=point.zero_count,
        zero_threshold=point.zero_threshold,
        pos_offset=point.positive.offset,
        pos_counts=list(point.positive.bucket_counts),
        neg_offset=point.negative.offset,
        neg_counts=list(point.negative.bucket_counts),
    )


def _summary(point: Any) -> Distribution:
    quantiles = [(each.quantile, each.value) for each in point.quantile_values]
    return Distribution(point.count, point.sum, None, None, quantiles=quantiles)


def _optional(point: Any) -> tuple[float | None, float | None, float | None]:
    return (
        point.sum if point.HasField("sum") else None,
        point.min if point.HasField("min") else None,
        point.max if point.HasField("max") else None,
    )


# By the name of the field in OTLP's Metric: the stored kind, and the reader of its points.
# The readers raise ValueError when a point cannot be stored.
KINDS: dict[str, tuple[str, Callable[[Any], Distribution]]] = {
    "histogram": ("histogram", _explicit),
    "exponential_histogram": ("exp_histogram", _exponential),
    "summary": ("summary", _summary),
}
