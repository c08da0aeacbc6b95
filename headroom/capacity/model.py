"""The model of `headroom plan`: a workload times the figures that `make scale` and `make bench` measured."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

_US_PER_S = 1e6
_DAY_S = 86_400
_RECORD_HEAD_BYTES = 120  # of a push in the spool, besides its payload
_ROWS_OF_A_PUSH = 2  # one in pushes, one in client_instances
_USAGE_ROW_BYTES = 12  # on disk: repeated keys and slowly moving rates
_USAGE_KEPT_DAYS = 30  # quota_usage, unless store.retention_days says otherwise
_MINUTE_ROW_BYTES = 250  # on disk, merged: of usage_1m, whose rates are the sixty of a minute
_MINUTES_KEPT_DAYS = 400  # usage_1m, unless store.retention_days says otherwise

# The planned use of each resource.
_BUSY = 0.6  # of a core
_CORES_PER_GATEWAY = 4
_CORES_PER_SHARD = 8
_CONNECTIONS_PER_PROCESS = 19_000  # a limit of 262,144 open files allows more; p99 was measured to here
_CLICKHOUSE_RAM_SHARE = 0.5  # of a node's memory that the series may take


Cost = Annotated[float, Field(gt=0)]


class Figures(BaseModel):
    """CPU in microseconds of one core, memory and disk in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured: str  # date
    machine: str
    build: str  # compiled or pure Python
    source: str  # which runs they come from
    push_us: Cost  # of the network process, for each push: rules, spool, acknowledgement
    push_byte_us: Cost  # more for each byte of its payload
    frame_us: Cost  # of the network process, for each Kafka request with its response that passes through
    frame_byte_us: Cost
    worker_push_us: Cost  # of the storage worker, for each push: read, decompress, rows of pushes and instances
    point_us: Cost  # of the storage worker, for each data point: decode, insert
    store_push_us: Cost  # of ClickHouse, for each push: its share of a batch, rows of pushes and instances
    row_us: Cost  # of ClickHouse, for each row of points: its insert
    merge_row_us: Cost  # of ClickHouse, each time that a row is merged
    merges: Cost  # how often a row is merged until the parts of its day are one
    row_bytes: Cost  # of a point on disk, merged, one replica
    series_hour_bytes: Cost  # more for each series and hour: the columns that identify the series
    instance_bytes: Cost  # of the network process, for each client instance
    connection_bytes: Cost  # for each pair of connections, client's and broker's
    series_bytes: Cost  # of ClickHouse's memory, for each series
    network_rss_bytes: Cost  # without clients
    worker_rss_bytes: Cost
    spark_row_us: Cost  # of the Spark job, for each row of quota_usage that it reads


def load_figures() -> Figures:
    """The figures of figures.json, which the package ships."""
    return Figures.model_validate_json(Path(__file__).with_name("figures.json").read_bytes())


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload. `rate_bytes_s`: Kafka traffic of all clients through the gateways, in both directions."""

    clients: int  # instances that push
    interval_s: float = 60.0
    points: float = 100.0  # of each push
    push_bytes: float = 2_500.0  # of each push, compressed
    rate_bytes_s: float = 0.0
    request_bytes: float = 16_384.0
    brokers: int = 3  # that each client has a connection to
    names: int = 0  # pairs of user and client id that send or fetch at each moment; 0: a tenth of the clients
    retention_days: float = 14.0
    replicas: int = 2
    outage_h: float = 4.0  # without the store, that the spools hold
    job_window_s: float = 900.0  # that a run of the Spark job reads
    job_seconds: float = 120.0  # that it may take

    @property
    def pushes_s(self) -> float:
        """Of all clients."""
        return self.clients / self.interval_s

    @property
    def points_s(self) -> float:
        """Of all clients."""
        return self.pushes_s * self.points

    @property
    def requests_s(self) -> float:
        """Kafka requests that pass through the gateways."""
        return self.rate_bytes_s / self.request_bytes

    @property
    def usage_rows_s(self) -> float:
        """One row per second for each active pair of user and client id at each broker."""
        return (self.names or self.clients / 10) * self.brokers

    @property
    def connections(self) -> int:
        """Of clients; each has one to its broker beside it."""
        return self.clients * self.brokers


class Line(NamedTuple):
    """One row of the plan."""

    name: str
    value: float
    unit: str
    because: str


def plan(work: Workload, figures: Figures) -> list[Line]:
    """The resources that the workload needs, each with the figures it is computed from."""
    network, worker = network_cores(work, figures), worker_cores(work, figures)
    processes = max(ceil(network / _BUSY), ceil(work.connections / _CONNECTIONS_PER_PROCESS))
    # A gateway has two more cores: for its storage worker, which is one process, and for the rest.
    gateways = max(2, ceil(processes / (_CORES_PER_GATEWAY - 2)), ceil(worker / _BUSY))
    processes = max(processes, gateways)
    memory = gateways * figures.worker_rss_bytes + processes * figures.network_rss_bytes
    memory += work.clients * figures.instance_bytes + work.connections * figures.connection_bytes
    spool = work.pushes_s * (work.push_bytes + _RECORD_HEAD_BYTES) * work.outage_h * 3600
    spark_us = work.usage_rows_s * work.job_window_s * figures.spark_row_us
    worker_because = f"{figures.worker_push_us:.0f} us a push, {figures.point_us:.2f} us a point; one worker a gateway"
    return [
        Line("pushes", work.pushes_s, "/s", f"{work.clients} clients every {work.interval_s:g} s"),
        Line("points", work.points_s, "rows/s", f"{work.points:g} points a push"),
        Line("usage rows", work.usage_rows_s, "rows/s", "pairs of user and client id x brokers, while they are active"),
        Line("kafka requests", work.requests_s, "/s", f"{work.request_bytes:g} bytes a request and its response"),
        Line("gateways", gateways, "", f"{_CORES_PER_GATEWAY} cores each, planned {_BUSY:.0%} busy, at least 2"),
        Line("network processes", processes, "", "cores, and connections a process"),
        Line("network cores", network, "cores", "pushes and requests, all processes"),
        Line("storage worker cores", worker, "cores", worker_because),
        Line("gateway memory", memory, "bytes", "processes, instances, connections; all gateways together"),
        Line(
            "connections",
            work.connections,
            "",
            f"{work.brokers} brokers a client; each has an upstream connection to the broker",
        ),
        Line(
            "gateway.max_connections",
            ceil(work.connections / (gateways - 1)),
            "",
            "setting of each gateway, with one of them away",
        ),
        Line("spool disk", spool, "bytes", f"{work.outage_h:g} h without ClickHouse; all gateways together"),
        *_clickhouse_lines(work, figures),
        Line("network in", work.pushes_s * work.push_bytes + work.rate_bytes_s, "bytes/s", "pushes and Kafka traffic"),
        Line(
            "spark cores",
            spark_us / _US_PER_S / work.job_seconds,
            "cores",
            f"{work.job_window_s:g} s of usage in {work.job_seconds:g} s",
        ),
    ]


def _clickhouse_lines(work: Workload, figures: Figures) -> list[Line]:
    cores, replicas = clickhouse_cores(work, figures, figures.merges), work.replicas
    point_bytes = row_bytes(figures, 3600 / work.interval_s)
    points_day = work.points_s * point_bytes * _DAY_S * replicas
    usage_day = work.usage_rows_s * _USAGE_ROW_BYTES * _DAY_S * replicas
    minutes = work.usage_rows_s / 60 * _MINUTE_ROW_BYTES * _DAY_S * _MINUTES_KEPT_DAYS * replicas
    memory = work.clients * work.points * figures.series_bytes * replicas / _CLICKHOUSE_RAM_SHARE
    shards = max(1, ceil(cores / (_CORES_PER_SHARD * _BUSY)))
    return [
        Line(
            "clickhouse cores",
            cores * replicas,
            "cores",
            f"{figures.row_us:.2f} us a row and {figures.merge_row_us:.2f} for each of its {figures.merges:g} merges,"
            f" {replicas} replicas",
        ),
        Line("clickhouse shards", shards, "", f"{_CORES_PER_SHARD} cores a node, {replicas} nodes a shard"),
        Line("clickhouse disk a day", points_day + usage_day, "bytes", f"{point_bytes:.1f} bytes a point"),
        Line(
            "clickhouse disk",
            points_day * work.retention_days + usage_day * _USAGE_KEPT_DAYS,
            "bytes",
            f"points {work.retention_days:g} days, quota_usage {_USAGE_KEPT_DAYS}, {replicas} replicas",
        ),
        Line(
            "clickhouse disk for minutes",
            minutes,
            "bytes",
            f"usage_1m, {_MINUTES_KEPT_DAYS} days unless store.retention_days has fewer, {replicas} replicas",
        ),
        Line("clickhouse memory", memory, "bytes", "series in memory"),
    ]


def network_cores(work: Workload, figures: Figures) -> float:
    pushes = work.pushes_s * (figures.push_us + figures.push_byte_us * work.push_bytes)
    frames = work.requests_s * (figures.frame_us + figures.frame_byte_us * work.request_bytes)
    return (pushes + frames) / _US_PER_S


def worker_cores(work: Workload, figures: Figures) -> float:
    points = (work.points_s + work.usage_rows_s) * figures.point_us
    return (work.pushes_s * figures.worker_push_us + points) / _US_PER_S


def clickhouse_cores(work: Workload, figures: Figures, merges: float) -> float:
    """Cores of one replica of all shards, which merges each row `merges` times."""
    rows_s = work.points_s + work.usage_rows_s
    merged = merges * (rows_s + _ROWS_OF_A_PUSH * work.pushes_s) * figures.merge_row_us
    return (work.pushes_s * figures.store_push_us + rows_s * figures.row_us + merged) / _US_PER_S


def row_bytes(figures: Figures, points_of_a_series_an_hour: float) -> float:
    """On disk: rows of one series and hour are adjacent, so the columns that name the series cost one copy per hour."""
    return figures.row_bytes + figures.series_hour_bytes / max(1.0, points_of_a_series_an_hour)
