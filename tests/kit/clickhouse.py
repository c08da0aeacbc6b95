"""A running ClickHouse server with the schema of deploy/clickhouse, for tests, the bench and chaos runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from exporters.clickhouse.connection import WRITER, Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer
from exporters.clickhouse.store import Store


class RunningClickHouse:
    """A managed server and ways to reach it. `store` writes; each further thread opens its own."""

    def __init__(self, server: ManagedServer) -> None:
        self.server = server
        self.host, self.port = server.host, server.http_port
        self.url = server.url  # names no user: a reader's
        self.reader = Endpoint.parse(server.url)
        self.writer = Endpoint("http", server.host, server.http_port, WRITER, server.password)
        self.store = self.open_store()
        self.store.migrate()

    def open_store(self) -> Store:
        return Store(self.writer)


@contextlib.contextmanager
def running_clickhouse(directory: Path, *, http_port: int = 0) -> Iterator[RunningClickHouse]:
    """A server over `directory` until the block ends. It dies with the calling thread."""
    server = ManagedServer(ServerSettings(directory, http_port=http_port))
    try:
        server.launch()
        server.wait_ready()
        running = RunningClickHouse(server)
        yield running
        running.store.close()
    finally:
        server.stop()
