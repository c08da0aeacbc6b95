"""A running ClickHouse server with the schema of deploy/clickhouse, for tests, the bench and chaos runs."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import clickhouse_connect
import psutil
from clickhouse_connect.driver.client import Client

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import ANY_DATABASE, Endpoint, StoreOptions
from exporters.clickhouse.managed.configuration import ServerSettings
from exporters.clickhouse.managed.server import ManagedServer, ServerError
from exporters.clickhouse.store import Store
from quota_metrics.verdict.thresholds import SCHEMA_VALUES

ServerT = TypeVar("ServerT", bound="LaunchedServer")

_START_S = 60.0
_POLL_S = 0.05


def connected(endpoint: Endpoint, **options: Any) -> Client:
    return clickhouse_connect.get_client(
        interface=endpoint.scheme,
        host=endpoint.host,
        port=endpoint.port,
        username=endpoint.user or "default",
        password=endpoint.password,
        **{
            "database": endpoint.database,
            "autogenerate_session_id": False,
            **(endpoint.tls.options() if endpoint.scheme == "https" else {}),
            **options,
        },
    )


class QueriedStore(Store):
    """A store whose tables the test looks at."""

    def __init__(self, *endpoints: Endpoint, options: StoreOptions = StoreOptions()) -> None:
        super().__init__(*endpoints, options=options)
        self._looked_at = endpoints[0]

    @property
    def clickhouse(self) -> ClickHouse:
        """A client of its own, as the same user."""
        return ClickHouse((self._looked_at,))

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Rows as Python values."""
        with connected(self._looked_at, database=ANY_DATABASE) as client:
            if client.command(f"EXISTS DATABASE {self._looked_at.database}"):
                client.database = self._looked_at.database
            return [tuple(row) for row in client.query(sql, parameters=dict(parameters or {})).result_rows]


class LaunchedServer(ManagedServer):
    """A managed server as a process of the test, without the supervision of `headroom serve`."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts the process and returns. It dies with the calling thread, which must outlive it."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Raises ServerError when it ends before or takes over a minute."""
        assert self.process is not None
        deadline_s = time.monotonic() + _START_S
        while not self.answers():
            if (status := self.process.poll()) is not None:
                raise ServerError(f"the ClickHouse server ended with {status}: {self.last_error(status)}")
            if time.monotonic() > deadline_s:
                raise ServerError(f"the ClickHouse server does not answer after {_START_S:.0f} s")
            time.sleep(_POLL_S)

    def stop(self, grace_s: float = 20.0) -> int:
        """Sends SIGTERM, after `grace_s` SIGKILL; returns the exit status."""
        self.close()
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


class RunningClickHouse:
    """A managed server and ways to reach it. `store` writes; each further thread opens its own."""

    def __init__(self, server: LaunchedServer) -> None:
        self.server = server
        self.writer = server.writer
        self.host, self.port = server.writer.host, server.writer.port
        self.url = str(server.writer)  # names no user: a reader's
        self.reader = Endpoint.parse(self.url)
        self.store = self.open_store()
        self.store.migrate(SCHEMA_VALUES)

    @property
    def environment(self) -> dict[str, str]:
        """With these variables `headroom serve` writes to this server."""
        return {"HEADROOM_CLICKHOUSE": self.writer.url, "HEADROOM_CLICKHOUSE_PASSWORD": self.writer.password}

    @property
    def process(self) -> psutil.Process:
        assert self.server.process is not None
        return psutil.Process(self.server.process.pid)

    def open_store(self) -> QueriedStore:
        return QueriedStore(self.writer)


@contextlib.contextmanager
def launched(server: ServerT) -> Iterator[ServerT]:
    """The server accepts requests until the block ends. It dies with the calling thread."""
    try:
        server.launch()
        server.wait_ready()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_clickhouse(directory: Path, *, http_port: int = 0) -> Iterator[RunningClickHouse]:
    """A server over `directory` until the block ends. It dies with the calling thread."""
    with launched(LaunchedServer(ServerSettings(directory, http_port=http_port))) as server:
        running = RunningClickHouse(server)
        yield running
        running.store.close()
