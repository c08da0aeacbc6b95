"""Builds one Arrow table per ClickHouse table from decoded records, column by column. Sans-I/O.

Types are those of `Store.insert`: strings dictionary-encoded, UUIDs as 16 bytes, times in ms, UTC.
Columns of the sender are built by index (numpy), not by a Python loop over points.

Points are in the order of the sorting key of table `points`: cluster, metric, hour, principal, client_id,
client_instance_id, series_id, ts. ClickHouse then neither sorts nor permutes the rows of an insert; another order is
correct, too, and costs twice the CPU in the server.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_128_digest

from exporters.model import OTLP_LISTENERS, ClientInstance, Push, QuotaLimit, StoredFacts, TopicSample, UsageSample
from telemetry.decode.bounds import codec_name
from telemetry.decode.decoder import DecodedPush
from telemetry.decode.series import Attributes, Series
from telemetry.decode.templates import Names, PointColumns, Template, gathered, listed
from telemetry.ingest.rollups import MS_PER_HOUR

_TIME = pa.timestamp("ms", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())
_TRANSPORTS = {listener: transport for transport, listener in OTLP_LISTENERS.items()}
_QUANTILES = pa.list_(pa.struct([("q", pa.float64()), ("v", pa.float64())]))


def points_table(outcomes: Sequence[DecodedPush]) -> tuple[pa.Table, list[int], int]:
    """Rows of `points` in the order of its key, their hours since 1970, and how many timestamps were clamped."""
    names, received_ms = Names(), np.array([outcome.push.received_at_ms for outcome in outcomes], np.int64)
    pushes = [outcome.push for outcome in outcomes]
    ranks = push_ranks(pushes)
    numbered = [(n, outcome.decoded.points) for n, outcome in enumerate(outcomes) if outcome.decoded.points.value]
    blocks = [listed([n for n, _ in numbered], [points for _, points in numbered], names)]
    by_template: dict[Template, list[int]] = {}  # the numbers of its pushes
    for n in np.argsort(ranks.sender, kind="stable").tolist():
        match = outcomes[n].match
        if match is not None:
            by_template.setdefault(match.template, []).append(n)
    clamped = 0
    for template, numbers in by_template.items():
        matches = [match for n in numbers if (match := outcomes[n].match)]
        block, out_of_bounds = gathered(template, numbers, matches, received_ms[numbers], names)
        blocks.append(block)
        clamped += out_of_bounds
    columns = PointColumns(*map(np.concatenate, zip(*blocks, strict=True)))
    order, hours = key_order(columns, names.ranks(), ranks)
    columns = PointColumns(*(column[order] if column.any() else column for column in columns))  # zeros have no order

    senders = {**_identity(pushes), "received_at": _times(push.received_at_ms for push in pushes)}
    of_push = pa.array(columns.push, pa.int32())
    rows = {
        **{name: column.take(of_push) for name, column in senders.items()},
        "metric": pa.DictionaryArray.from_arrays(columns.metric, pa.array(list(names), pa.string())),
        "ts": pa.array(columns.ts_ms).cast(_TIME),
        "series_id": pa.array(columns.series_id),
        "value": pa.array(columns.value),
        "interval_ms": pa.array(columns.interval_ms),
    }
    # Few points have these two: without them the table's defaults hold.
    if columns.has_int_value.any():
        rows["int_value"] = pa.array(columns.int_value, mask=~columns.has_int_value)
    if columns.flags.any():
        rows["flags"] = pa.array(columns.flags)
    return pa.table(rows), hours, clamped


def series_table(outcomes: Sequence[DecodedPush]) -> pa.Table:
    """Rows of `series`: each new series once, as in the last push that contains it."""
    by_id: dict[int, Series] = {}
    number: dict[int, int] = {}  # of the push; a tuple per series would keep the garbage collector busy
    for n, outcome in enumerate(outcomes):
        by_id.update(outcome.decoded.series)
        number.update(dict.fromkeys(outcome.decoded.series, n))
    # Clients of one template share Series objects: each object is converted once, and taken by its number.
    object_numbers: dict[int, int] = {}
    numbers = [object_numbers.setdefault(id(series), len(object_numbers)) for series in by_id.values()]
    index = pa.array(numbers, pa.int32())
    described = list({id(series): series for series in by_id.values()}.values())
    pushes = [outcome.push for outcome in outcomes]
    of_push = pa.array(list(number.values()), pa.int32())
    of_series = {
        **_texts(described, "metric", "kind", "temporality", "unit", "scope_name", "scope_version"),
        "monotonic": _column((series.monotonic for series in described), pa.bool_()),
        "attributes": _maps(series.attributes for series in described),
        "resource": _maps(series.resource for series in described),
    }
    senders = {**_identity(pushes), **_connection(pushes), "last_seen": _times(push.received_at_ms for push in pushes)}
    return pa.table(
        {
            "series_id": _column(by_id, pa.uint64()),
            **{name: column.take(index) for name, column in of_series.items()},
            **{name: column.take(of_push) for name, column in senders.items()},
        }
    )


def histograms_table(outcomes: Sequence[DecodedPush]) -> pa.Table:
    rows = [(histogram, outcome.push) for outcome in outcomes for histogram in outcome.decoded.histograms]
    histograms = [histogram for histogram, _ in rows]
    pushes = [push for _, push in rows]
    return pa.table(
        {
            **_identity(pushes),
            **_texts(histograms, "metric", "kind", "temporality", "unit"),
            "ts": _times(histogram.ts_ms for histogram in histograms),
            **_values(histograms, series_id=pa.uint64(), flags=pa.uint8(), interval_ms=pa.uint32()),
            **_values([histogram.distribution for histogram in histograms], **_DISTRIBUTION),
            "attributes": _maps(histogram.attributes for histogram in histograms),
            "resource": _maps(histogram.resource for histogram in histograms),
            "received_at": _times(push.received_at_ms for push in pushes),
        }
    )


def push_id(segment: str, end: int) -> bytes:
    """The permanent id of the push whose record ends at this place: the same in whatever batch it is read."""
    return xxh3_128_digest(f"{segment}:{end}".encode())


def pushes_table(push_ids: Sequence[bytes], outcomes: Sequence[DecodedPush]) -> pa.Table:
    pushes = [outcome.push for outcome in outcomes]
    return pa.table(
        {
            **_identity(pushes),
            **_connection(pushes),
            "received_at": _times(push.received_at_ms for push in pushes),
            "push_id": _uuids(b"".join(push_ids)),
            "transport": _strings(_TRANSPORTS.get(push.connection.listener, "kafka") for push in pushes),
            **_values(pushes, subscription_id=pa.int32(), terminating=pa.bool_()),
            "compression": _strings(codec_name(push.compression_type) for push in pushes),
            "bytes": _column((len(push.payload) for push in pushes), pa.uint32()),
            **_values(outcomes, uncompressed_bytes=pa.uint32(), points=pa.uint32(), error_code=pa.int16()),
        }
    )


def instances_table(outcomes: Sequence[DecodedPush], instances: Sequence[ClientInstance]) -> pa.Table:
    """Rows of `client_instances`, which the table aggregates: one per stored push or seen instance."""
    kept = [outcome for outcome in outcomes if outcome.error_code == 0]
    seen: list[Push | ClientInstance] = [*(outcome.push for outcome in kept), *instances]
    times = [*(outcome.push.received_at_ms for outcome in kept), *(instance.seen_at_ms for instance in instances)]
    none = [0] * len(instances)
    connection = _connection(seen)
    del connection["broker_id"]
    return pa.table(
        {
            **_identity(seen),
            **connection,
            "first_seen": _times(times),
            "last_seen": _times(times),
            "terminated": _column([*(int(outcome.push.terminating) for outcome in kept), *none], pa.uint8()),
            "pushes": _column([*(1 for _ in kept), *none], pa.uint64()),
            "points": _column([*(outcome.points for outcome in kept), *none], pa.uint64()),
        }
    )


def usage_table(samples: Sequence[UsageSample], received_at_ms: int) -> pa.Table:
    who = ("cluster", "quota_key", "user", "client_id", "ip")
    return pa.table(
        {
            **_texts(samples, *who, "source", "gateway_id", "matched_entity", "decided_by"),
            "bucket_user": _strings(
                sample.user if sample.bucket_user is None else sample.bucket_user for sample in samples
            ),
            "bucket_client_id": _strings(
                sample.client_id if sample.bucket_client_id is None else sample.bucket_client_id for sample in samples
            ),
            "ts": _times(sample.ts_ms for sample in samples),
            **_values(samples, **_USAGE),
            "limit_known": _column((int(sample.limit_known) for sample in samples), pa.uint8()),
            "received_at": _times(received_at_ms for _ in samples),
        }
    )


def limits_table(limits: Sequence[QuotaLimit], observed_at_ms: int) -> pa.Table:
    return pa.table(
        {
            **_texts(limits, "cluster", "user", "client_id", "ip", "quota_key"),
            "valid_from": _times(limit.valid_from_ms for limit in limits),
            "value": _column((limit.value for limit in limits), pa.float64()),
            "observed_at": _times(observed_at_ms for _ in limits),
        }
    )


def facts_table(facts: Sequence[StoredFacts], observed_at_ms: int) -> pa.Table:
    windows = (f"{of}quota_window_{part}" for of in ("", "controller_") for part in ("num", "size_ms"))
    return pa.table(
        {
            **_texts(facts, "cluster", "release", "callback_class"),
            **_values(facts, **dict.fromkeys((*windows, "io_threads", "network_threads"), pa.uint32())),
            **_values(facts, broker_id=pa.int32(), telemetry_max_bytes=pa.uint64()),
            "valid_from": _times(row.valid_from_ms for row in facts),
            "configs": _column((list(row.configs.items()) for row in facts), _MAP),
            "observed_at": _times(observed_at_ms for _ in facts),
        }
    )


def topics_table(samples: Sequence[TopicSample], received_at_ms: int) -> pa.Table:
    return pa.table(
        {
            **_texts(samples, "cluster", "user", "client_id", "topic", "direction", "gateway_id"),
            **_values(samples, sampled_bytes=pa.uint64(), sampled_frames=pa.uint64()),
            **_values(samples, interval_ms=pa.uint32(), sample=pa.float64()),
            "ts": _times(sample.ts_ms for sample in samples),
            "received_at": _times(received_at_ms for _ in samples),
        }
    )


_USAGE = {
    "broker_id": pa.int32(),
    "bytes": pa.uint64(),
    "rate": pa.float64(),
    "throttle_ms": pa.float64(),
    "throttled_requests": pa.uint64(),
    "requests": pa.uint64(),
    "interval_ms": pa.uint32(),
    "muted_ms": pa.uint32(),
    "limit": pa.float64(),
    "implied_limit": pa.float64(),
}
_DISTRIBUTION = {
    "count": pa.uint64(),
    "sum": pa.float64(),
    "min": pa.float64(),
    "max": pa.float64(),
    "bounds": pa.list_(pa.float64()),
    "bucket_counts": pa.list_(pa.uint64()),
    "scale": pa.int8(),
    "zero_count": pa.uint64(),
    "zero_threshold": pa.float64(),
    "pos_offset": pa.int32(),
    "pos_counts": pa.list_(pa.uint64()),
    "neg_offset": pa.int32(),
    "neg_counts": pa.list_(pa.uint64()),
    "quantiles": _QUANTILES,
}


def _identity(senders: Sequence[Push | ClientInstance]) -> dict[str, Any]:
    """Columns that name the sender: from the connection and the request header."""
    instance_ids = b"".join(sender.client_instance_id for sender in senders)
    return {
        "cluster": _strings(sender.connection.cluster for sender in senders),
        "principal": _strings(sender.connection.principal for sender in senders),
        "client_id": _strings(sender.client_id for sender in senders),
        "client_instance_id": _uuids(instance_ids).dictionary_encode(),
    }


def _connection(senders: Sequence[Push | ClientInstance]) -> dict[str, Any]:
    connections = [sender.connection for sender in senders]
    return {
        **_texts(connections, "software_name", "software_version", "source_address"),
        **_values(connections, broker_id=pa.int32()),
    }


def _texts(rows: Sequence[Any], *names: str) -> dict[str, Any]:
    """Columns of strings: the attributes of these names."""
    return {name: _strings(getattr(row, name) for row in rows) for name in names}


def _values(rows: Sequence[Any], **types: Any) -> dict[str, Any]:
    """Columns of other types: the attributes of these names."""
    return {name: _column((getattr(row, name) for row in rows), kind) for name, kind in types.items()}


def _column(values: Iterable[Any], kind: Any) -> Any:
    return pa.array(list(values), kind)


def _strings(values: Iterable[str]) -> Any:
    return pa.array(list(values), pa.string()).dictionary_encode()


def _maps(values: Iterable[Attributes]) -> Any:
    """Equal values are converted once."""
    numbers: dict[Attributes, int] = {}
    indices = [numbers.setdefault(value, len(numbers)) for value in values]
    return pa.array(list(numbers), _MAP).take(pa.array(indices, pa.int32()))


def _times(values_ms: Iterable[int]) -> Any:
    return pa.array(list(values_ms), pa.int64()).cast(_TIME)


def _uuids(joined: bytes) -> Any:
    return pa.Array.from_buffers(pa.binary(16), len(joined) // 16, [None, pa.py_buffer(joined)])


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
    # Then by sender, series and time, by one number each: the sender and the highest bits of the series.
    series_id, ts_ms = columns.series_id[order], columns.ts_ms[order]
    bits = max(1, int(sender.max()).bit_length())
    keys = sender << np.uint64(64 - bits) | series_id >> np.uint64(bits)
    by_series = np.argsort(keys, kind="stable")
    keys, series, ts = keys[by_series], series_id[by_series], ts_ms[by_series]
    later, equal = series[1:] < series[:-1], series[1:] == series[:-1]
    if np.any((keys[1:] == keys[:-1]) & (later | equal & (ts[1:] < ts[:-1]))):  # rare, and ten times as expensive
        by_series = np.lexsort((ts_ms, series_id, sender))
    return order[by_series], hours


def _ranks(values: Sequence[Hashable]) -> _Numbers:
    number = {value: n for n, value in enumerate(sorted(set(values)))}  # type: ignore[type-var] # strings, or tuples
    return np.array([number[value] for value in values], np.int64)
