"""The engine of the storage tests: one process for all of them; tests make databases and tables of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

from tests.kit.engine_process import EngineProcess, engine_process


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with engine_process(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture
def client(engine: EngineProcess) -> Iterator[Client]:
    """clickhouse-connect's ordinary HTTP client at the receiver, in a database of its own."""
    database = f"test_{uuid.uuid4().hex}"
    with clickhouse_connect.get_client(host=engine.host, port=engine.port) as admin:
        admin.command(f"CREATE DATABASE {database}")
        with clickhouse_connect.get_client(host=engine.host, port=engine.port, database=database) as connected:
            yield connected
        admin.command(f"DROP DATABASE {database}")
