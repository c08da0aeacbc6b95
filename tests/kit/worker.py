"""Settings of the storage process for tests that run parts of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.options import StoreOptions
from headroom.server.processes.storage_process import WorkerSettings
from headroom.server.processes.store_nodes import StoreNodes


def worker_settings(directory: Path) -> WorkerSettings:
    """For a spool and a quarantine in `directory`, and a store that does not answer."""
    return WorkerSettings(
        spool=str(directory / "spool"),
        store=asdict(StoreNodes.of([Endpoint.parse("http://127.0.0.1:1")], StoreOptions())),
        max_decompressed_bytes=1,
        max_client_points=1,
        max_client_series=1,
        batch_ms=1,
        batch_records=20_000,
        batch_bytes=1,
        rollup_ms=1,
        quarantine=str(directory / "quarantine"),
        quarantine_records=1,
        quarantine_bytes=1,
        mirror="",
        mirror_bytes=0,
    )
