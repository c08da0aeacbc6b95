"""Sorts points by the sorting key of table `points`: ClickHouse then neither sorts nor permutes the rows of an insert.

The key: cluster, metric, hour, principal, client_id, client_instance_id, series_id, ts. Another order is correct, too,
and costs twice the CPU in the server. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exporters.model import Push
from telemetry.decode.point_columns import PointColumns
from telemetry.ingest.rollups import MS_PER_HOUR

_Numbers = npt.NDArray[Any]


class PushRanks(NamedTuple):
    """One element per push: the rank of its cluster, and of its principal, client id and instance."""

    cluster: _Numbers
    sender: _Numbers


def push_ranks(pushes: Sequence[Push]) -> PushRanks:
    """The ranks in ClickHouse's order: strings by bytes, UUIDs by their second half, then by their first."""
    instances = [push.client_instance_id for push in pushes]
    senders = [
        (push.connection.principal, push.client_id, instance[8:] + instance[:8])
        for push, instance in zip(pushes, instances, strict=True)
    ]
    return PushRanks(_ranks([push.connection.cluster for push in pushes]), _ranks(senders))


def key_order(columns: PointColumns, metric_ranks: _Numbers, pushes: PushRanks) -> tuple[_Numbers, list[int]]:
    """The indexes of the points in the order of the key, and their hours since 1970. `metric_ranks`: by metric number.

    Fast for points whose pushes are in the order of `pushes.sender`: their senders need no sorting within a metric.
    """
    if not len(columns.push):
        return np.array([], np.intp), []
    hour = columns.ts_ms // MS_PER_HOUR
    first = int(hour.min())
    hour -= first
    hours = (first + np.flatnonzero(np.bincount(hour))).tolist()
    group = pushes.cluster[columns.push] * len(metric_ranks) + metric_ranks[columns.metric]
    group = group * (int(hour.max()) + 1) + hour
    # 16 bits: a radix sort
    order = np.argsort(group.astype(np.uint16) if group.max() < 1 << 16 else group, kind="stable")
    sender = (group * len(pushes.sender) + pushes.sender[columns.push]).astype(np.uint64)[order]
    return order[_by_series(sender, columns.series_id[order], columns.ts_ms[order])], hours


def _by_series(sender: _Numbers, series_id: _Numbers, ts_ms: _Numbers) -> _Numbers:
    """Sorts by sender, series and time, by one number each: the sender and the highest bits of the series."""
    bits = max(1, int(sender.max()).bit_length())
    keys = sender << np.uint64(64 - bits) | series_id >> np.uint64(bits)
    order = np.argsort(keys, kind="stable")
    keys, series, ts = keys[order], series_id[order], ts_ms[order]
    later, equal = series[1:] < series[:-1], series[1:] == series[:-1]
    if np.any((keys[1:] == keys[:-1]) & (later | equal & (ts[1:] < ts[:-1]))):  # rare, and ten times as expensive
        return np.lexsort((ts_ms, series_id, sender))
    return order


def _ranks(values: Sequence[Hashable]) -> _Numbers:
    number = {value: n for n, value in enumerate(sorted(set(values)))}  # type: ignore[type-var] # strings, or tuples
    return np.array([number[value] for value in values], np.int64)
