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
    push_us: Cost  # of the network process, for each push: rules, spool, acknowledgement
    push_byte_us: Cost  # more for each byte of its payload
    frame_us: Cost  # of the network process, for each Kafka request with its response that passes through
    frame_byte_us: Cost
    point_us: Cost  # of the storage worker, for each data point: read, decode, insert
    row_us: Cost  # of ClickHouse, for each row of points, including merges
    row_bytes: Cost  # on disk, one replica
    instance_bytes: Cost  # of the network process, for each client instance
    connection_bytes: Cost  # of the network process, for each pair of connections, client's and broker's
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
