"""Settings of the storage process for tests that run parts of it."""

from __future__ import annotations

from pathlib import Path

from exporters.clickhouse.connection import Endpoint
from headroom.config.settings import StoreConfig, TelemetryConfig
from headroom.server.processes.storage_process import WorkerSettings


def worker_settings(directory: Path) -> WorkerSettings:
    """For a spool and a quarantine in `directory`, and a store that does not answer."""
    nodes = (Endpoint.parse("http://127.0.0.1:1"),)
    return WorkerSettings(data=directory, nodes=nodes, store=StoreConfig(), telemetry=TelemetryConfig())
