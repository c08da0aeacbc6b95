"""The model of `headroom plan`: a workload times the measured figures. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, hypot, log
from typing import NamedTuple

from headroom.capacity.figures import Figures

_US_PER_S = 1e6
_DAY_S = 86_400
_RECORD_HEAD_BYTES = 120  # of a push in the spool, besides its payload
_BATCH_RECORDS = 20_000  # store.batch_records
_BATCH_ROWS = 1_000_000  # telemetry.ingest.ingester
_MANY_POINTS_S = 100_000  # headroom.server.processes.storage_process: a batch is collected for twice as long
_USAGE_ROW_BYTES = 12  # on disk: repeated keys and slowly moving rates
_MINUTE_ROW_BYTES = 250  # on disk, merged: of usage_1m, whose rates are the sixty of a minute
_MINUTES_KEPT_DAYS = 400  # usage_1m, unless store.retention_days says otherwise
_SERIES_REWRITTEN_AFTER_S = 3600.0  # telemetry.ingest.ingester describes each series again
_ROLLUPS_AN_HOUR = 12.0  # store.rollup_ms
_SERIES_PER_SLICE = 1_000_000  # telemetry.ingest.rollups computes an hour in slices
_ROLLUP_SHARE = 0.05  # of the time that telemetry.ingest.rollups may take
_HEADS = 65_536  # telemetry.gateway.connection remembers, besides one for each connection
_FRAME_BYTES = 16_384  # of a Kafka request, unless the workload says otherwise


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload. `rate_bytes_s`: Kafka traffic of all clients through the gateways, in both directions."""

    clients: int  # instances that push
    interval_s: float = 60.0
    points: float = 100.0  # of each push
    push_bytes: float = 2_500.0  # of each push, compressed
    rate_bytes_s: float = 0.0
    request_bytes: float = _FRAME_BYTES
    brokers: int = 3  # that each client has a connection to
    names: int = 0  # pairs of user and client id that send or fetch at each moment; 0: a tenth of the clients
    retention_days: float = 14.0
    replicas: int = 2
    outage_h: float = 4.0  # without the store, that the spools hold
    job_window_s: float = 900.0  # that a run of the Spark job reads
    job_seconds: float = 120.0  # that it may take
    subscribing_s: float = 0.0  # instances that subscribe per second: new ones, and all of a gateway that is started
    described_s: float | None = None  # series described per second; None: each once an hour
    batches: float | None = None  # written into one partition until it is complete; None: those of a day
    unknown_heads: float = 0.0  # share of pushes whose request head is not remembered: 1 for first pushes

    @property
    def usage_rows_s(self) -> float:
        """One row per second for each active pair of user and client id at each broker."""
        return (self.names or self.clients / 10) * self.brokers

    @property
    def pushes_s(self) -> float:
        """Of all clients."""
        return self.clients / self.interval_s

    @property
    def rows_s(self) -> float:
        """Points and rows of usage."""
        return self.pushes_s * self.points + self.usage_rows_s

    @property
    def series_s(self) -> float:
        """Series that are described."""
        each = self.clients * self.points / _SERIES_REWRITTEN_AFTER_S
        return each if self.described_s is None else self.described_s


@dataclass(frozen=True, slots=True)
class Margins:
    """The planned utilisation of each resource."""

    busy: float = 0.6  # of a core
    cores_per_gateway: int = 4
    cores_per_shard: int = 8
    connections_per_process: int = 19_000  # a limit of 262,144 open files allows more; p99 was measured to here
    clickhouse_ram_share: float = 0.5  # of a node's memory that the series may take


class Line(NamedTuple):
    """One row of the plan."""

    name: str
    value: float
    unit: str
    because: str


def plan(work: Workload, figures: Figures, margins: Margins | None = None) -> list[Line]:
    """The resources that the workload needs, each with the figures it is computed from."""
    limits = margins or Margins()
    pushes_s = work.clients / work.interval_s
    points_s = pushes_s * work.points
    requests_s = work.rate_bytes_s / work.request_bytes
    connections = work.clients * work.brokers
    # One storage worker decodes for a gateway, on one core.
    load = _network_load(work, figures)
    processes = max(ceil(load / limits.busy), ceil(connections / limits.connections_per_process))
    per_gateway = max(1, limits.cores_per_gateway - 2)
    gateways = max(2, ceil(processes / per_gateway), ceil(worker_cores(work, figures) / limits.busy))
    processes = max(processes, gateways)
    memory = _gateway_memory(work, figures, gateways, processes)
    spool = pushes_s * (work.push_bytes + _RECORD_HEAD_BYTES) * work.outage_h * 3600
    usage_read = work.usage_rows_s * work.job_window_s
    return [
        Line("pushes", pushes_s, "/s", f"{work.clients} clients every {work.interval_s:g} s"),
        Line("points", points_s, "rows/s", f"{work.points:g} points a push"),
        Line("usage rows", work.usage_rows_s, "rows/s", "pairs of user and client id x brokers, while they are active"),
        Line("kafka requests", requests_s, "/s", f"{work.request_bytes:g} bytes a request and its response"),
        Line(
            "gateways",
            gateways,
            "",
            f"{limits.cores_per_gateway} cores each, planned {limits.busy:.0%} busy, at least 2",
        ),
        Line("network processes", processes, "", "cores, and connections a process"),
        Line("network cores", network_cores(work, figures, processes), "cores", "pushes and requests, all processes"),
        Line(
            "storage worker cores",
            worker_cores(work, figures, gateways),
            "cores",
            f"{figures.worker_push_us:.0f} us a push, {figures.point_us:.2f} us a point; one worker a gateway",
        ),
        Line("gateway memory", memory, "bytes", "processes, instances, connections; all gateways together"),
        Line(
            "connections",
            connections,
            "",
            f"{work.brokers} brokers a client; each has an upstream connection to the broker",
        ),
        Line("spool disk", spool, "bytes", f"{work.outage_h:g} h without ClickHouse; all gateways together"),
        *_clickhouse_lines(work, figures, limits, gateways),
        Line("network in", pushes_s * work.push_bytes + work.rate_bytes_s, "bytes/s", "pushes and Kafka traffic"),
        Line(
            "spark cores",
            usage_read * figures.spark_row_us / _US_PER_S / work.job_seconds,
            "cores",
            f"{work.job_window_s:g} s of usage in {work.job_seconds:g} s",
        ),
    ]


def _clickhouse_lines(work: Workload, figures: Figures, limits: Margins, gateways: int) -> list[Line]:
    points_s = work.clients / work.interval_s * work.points
    clickhouse = clickhouse_cores(work, figures, gateways) * work.replicas
    a_row = row_bytes(figures, 3600 / work.interval_s)
    shards = max(1, ceil(clickhouse / work.replicas / (limits.cores_per_shard * limits.busy)))
    series = work.clients * work.points * figures.series_bytes
    rollups = rollup_cores(work, figures, shards * limits.cores_per_shard) * work.replicas
    disk_day = (points_s * a_row + work.usage_rows_s * _USAGE_ROW_BYTES) * _DAY_S
    return [
        Line(
            "clickhouse cores",
            clickhouse,
            "cores",
            f"{figures.row_us:.2f} us a row and {figures.merge_row_us:.2f} for each time it is merged"
            f" ({merges_of_a_row(figures, _batches_s(work, gateways) * _DAY_S):.1f}), {work.replicas} replicas",
        ),
        Line(
            "clickhouse cores for rollups",
            rollups,
            "cores",
            f"{rollup_us(figures, 3600 / work.interval_s, work.clients * work.points):.2f} us a row, again every 5 min",
        ),
        Line("clickhouse shards", shards, "", f"{limits.cores_per_shard} cores a node, {work.replicas} nodes a shard"),
        Line("clickhouse disk a day", disk_day * work.replicas, "bytes", f"{a_row:.1f} bytes a point"),
        Line(
            "clickhouse disk",
            disk_day * work.replicas * work.retention_days,
            "bytes",
            f"{work.retention_days:g} days, {work.replicas} replicas",
        ),
        Line(
            "clickhouse disk for minutes",
            work.usage_rows_s / 60 * _MINUTE_ROW_BYTES * _DAY_S * _MINUTES_KEPT_DAYS * work.replicas,
            "bytes",
            f"usage_1m, {_MINUTES_KEPT_DAYS} days unless store.retention_days has fewer, {work.replicas} replicas",
        ),
        Line("clickhouse memory", series * work.replicas / limits.clickhouse_ram_share, "bytes", "series in memory"),
    ]


def _gateway_memory(work: Workload, figures: Figures, gateways: int, processes: int) -> float:
    """Bytes of all gateways together."""
    memory = gateways * figures.worker_rss_bytes + processes * figures.network_rss_bytes
    pairs = work.clients * work.brokers
    return memory + client_memory(work, figures, pairs, processes) + pairs * figures.connection_bytes / 2


def client_memory(work: Workload, figures: Figures, connections: int, processes: int = 1) -> float:
    """Bytes of all network processes for clients and their connections, without those to brokers."""
    heads = remembered_heads(work.clients, connections, processes)
    memory = work.clients * figures.instance_bytes + heads * figures.head_bytes
    return memory + connections * figures.connection_bytes / 2


def remembered_heads(instances: int, connections: float, processes: int = 1) -> float:
    """How many instances have a request head that is remembered."""
    return min(instances, connections + _HEADS * processes)


def network_cores(work: Workload, figures: Figures, processes: int = 1) -> float:
    """Cores of all network processes together.

    Each turn of an event loop handles the requests that have arrived. In a process that is mostly idle each push has a
    turn of its own; the more there are, the more of them share one, and a process has no more than `turns_s` of them.
    """
    pushes_s = work.clients / work.interval_s / processes
    turns_s = pushes_s / hypot(1, pushes_s / figures.turns_s)
    frames = work.rate_bytes_s / work.request_bytes * (figures.frame_us + figures.frame_byte_us * work.request_bytes)
    return (processes * (pushes_s * _push_us(work, figures) + turns_s * figures.turn_us) + frames) / _US_PER_S


def _network_load(work: Workload, figures: Figures) -> float:
    """Cores that pushes and frames take when processes are busy: what decides how many are needed."""
    requests_s = work.rate_bytes_s / work.request_bytes
    frame = figures.frame_us + figures.frame_byte_us * work.request_bytes
    return (work.clients / work.interval_s * _push_us(work, figures) + requests_s * frame) / _US_PER_S


def _push_us(work: Workload, figures: Figures) -> float:
    return figures.push_us + figures.unknown_head_us * work.unknown_heads + figures.push_byte_us * work.push_bytes


def worker_cores(work: Workload, figures: Figures, gateways: int = 1) -> float:
    """Cores of all storage workers together."""
    used = work.pushes_s * figures.worker_push_us + work.rows_s * figures.point_us
    used += work.series_s * figures.series_us + work.subscribing_s * figures.subscription_us
    return (used + _batches_s(work, gateways) * figures.batch_us) / _US_PER_S


def clickhouse_cores(work: Workload, figures: Figures, gateways: int = 1) -> float:
    """Cores of one replica of all shards, without rollups."""
    batches_s = _batches_s(work, gateways)
    times = merges_of_a_row(figures, batches_s * _DAY_S if work.batches is None else work.batches)
    used = work.pushes_s * (figures.store_push_us + times * figures.merge_push_us)
    used += work.rows_s * (figures.row_us + times * figures.merge_row_us)
    used += work.series_s * (figures.store_series_us + times * figures.merge_series_us)
    used += work.subscribing_s * (figures.store_instance_us + times * figures.merge_instance_us)
    used += work.clients * figures.instance_minute_us / 60
    return (used + batches_s * figures.store_batch_us) / _US_PER_S


def merges_of_a_row(figures: Figures, batches: float) -> float:
    """How often ClickHouse merges a row until the `batches` parts of its partition are one.

    Parts of about the same size are merged, `merge_parts` at a time: a row is copied as often as the number of parts
    can be divided by that.
    """
    return log(max(1.0, batches)) / log(figures.merge_parts)


def rollup_cores(work: Workload, figures: Figures, cores: float) -> float:
    """Cores of one replica of all shards, of which there are `cores`.

    The running hour is computed again and again, on average over half of its rows and all of its series; the pause
    after a computation limits the whole to a share of the time.
    """
    again = figures.rollup_slice_us * (rollup_slices(work.clients * work.points) - 1)
    rows = work.pushes_s * work.points * (figures.rollup_row_us + again) * (_ROLLUPS_AN_HOUR + 1) / 2
    series = work.clients * work.points * figures.rollup_series_us * _ROLLUPS_AN_HOUR / 3600
    return min((rows + series) / _US_PER_S, _ROLLUP_SHARE * cores)


def rollup_us(figures: Figures, points_of_a_series_an_hour: float, series: float) -> float:
    """CPU of ClickHouse for each row of an hour whose rollup is computed. Each slice reads all rows of the hour."""
    again = figures.rollup_slice_us * (rollup_slices(series) - 1)
    return figures.rollup_row_us + again + figures.rollup_series_us / max(1.0, points_of_a_series_an_hour)


def rollup_slices(series: float) -> int:
    """How many slices the rollup of an hour is computed in."""
    return max(1, ceil(series / _SERIES_PER_SLICE))


def _batches_s(work: Workload, gateways: int) -> float:
    """One a second for each gateway (store.batch_ms), or more when there is more than that many batches hold.

    A gateway with many points a second writes one every other second.
    """
    each = 1.0 if work.pushes_s * work.points < gateways * _MANY_POINTS_S else 0.5
    return max(gateways * each, work.pushes_s / _BATCH_RECORDS, work.rows_s / _BATCH_ROWS)


def row_bytes(figures: Figures, points_of_a_series_an_hour: float) -> float:
    """On disk: rows of one series and hour are adjacent, so the columns that name the series cost one copy per hour."""
    return figures.row_bytes + figures.series_hour_bytes / max(1.0, points_of_a_series_an_hour)
