"""Costs measured by `make scale` and `make bench`, with their date and machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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
