"""Costs measured by `make scale` and `make bench`, each with its date and machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("figures.json")

Cost = Annotated[float, Field(gt=0)]


class Figures(BaseModel):
    """CPU in microseconds of one core, memory and disk in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured: str  # date
    machine: str
    build: str  # compiled or pure Python
    source: str  # which runs they come from
    push_us: Cost  # of the network process, for each push at full load: rules, spool, acknowledgement
    unknown_head_us: Cost  # more for a push whose request head is not remembered
    push_byte_us: Cost  # more for each byte of its payload
    turn_us: Cost  # of the network process, for each turn of its event loop; under load many pushes share one
    turns_s: Cost  # how many of these there are at most in a second
    frame_us: Cost  # of the network process, for each Kafka request with its response that passes through
    frame_byte_us: Cost
    worker_push_us: Cost  # of the storage worker, for each push: read, decompress, rows of pushes and instances
    point_us: Cost  # of the storage worker, for each data point: decode, insert
    subscription_us: Cost  # of the storage worker, for each instance that subscribes
    series_us: Cost  # of the storage worker, for each series that it describes
    batch_us: Cost  # of the storage worker, for each batch of any size
    store_push_us: Cost  # of ClickHouse, for each push: inserts of the rows of pushes and instances
    row_us: Cost  # of ClickHouse, for each row of points: its insert
    store_series_us: Cost  # of ClickHouse, for each series that is described: its insert
    store_instance_us: Cost  # of ClickHouse, for each instance that subscribes: its insert
    store_batch_us: Cost  # of ClickHouse, for each batch: its inserts, whatever their size, and their sync
    merge_push_us: Cost  # each time that the rows of a push in pushes and instances are merged
    merge_row_us: Cost  # each time that a row of points is merged
    merge_series_us: Cost  # each time that a row of series is merged
    merge_instance_us: Cost  # each time that the row of an instance that subscribed is merged
    merge_parts: float = Field(gt=1)  # how many parts are merged at a time, on average
    instance_minute_us: Cost  # of ClickHouse, for each instance heard of in 15 minutes: levels are computed each minute
    rollup_row_us: Cost  # of ClickHouse, for each row of an hour whose rollup is computed
    rollup_series_us: Cost  # and for each series in it
    rollup_slice_us: Cost  # more for each row and slice of a million series after the first: it is read again
    row_bytes: Cost  # of a point on disk, merged, one replica
    series_hour_bytes: Cost  # more for each series and hour: the columns that identify the series
    instance_bytes: Cost  # of the network process, for each client instance
    head_bytes: Cost  # more for each instance whose request head is remembered (telemetry.gateway.connection)
    connection_bytes: Cost  # for each pair of connections, client's and broker's
    series_bytes: Cost  # of ClickHouse's memory, for each series
    network_idle: Cost  # cores, when idle
    worker_idle: Cost
    clickhouse_idle: Cost
    network_rss_bytes: Cost  # without clients
    worker_rss_bytes: Cost
    clickhouse_rss_bytes: Cost
    spark_row_us: Cost  # of the Spark job, for each row of quota_usage that it reads


def load_figures(path: Path = FILE) -> Figures:
    """Reads a file of figures. Raises OSError, and ValueError for invalid content."""
    return Figures.model_validate_json(path.read_bytes())
