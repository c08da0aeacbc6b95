"""A run whose server fails is recorded as failed once the server is back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from spark_jobs.clickhouse import runs
from spark_jobs.clickhouse.runs import JobRun
from spark_jobs.time_range import TimeRange


class Restarting(ClickHouse):
    """A server that is unavailable for some statements."""

    def __init__(self) -> None:
        super().__init__((Endpoint("http", "127.0.0.1", 1),))
        self.away: list[StoreError] = []
        self.statuses: list[tuple[str, str]] = []

    def command(self, sql: str, parameters: Mapping[str, Any] = MappingProxyType({}), **_: Any) -> None:
        if self.away:
            raise self.away.pop()
        self.statuses.append((parameters["status"], parameters["error"]))

    def rows(self, sql: str, parameters: Mapping[str, Any] = MappingProxyType({}), **_: Any) -> list[Row]:
        return []


def test_server_failure_is_recorded_after_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RETRY_S", 0.0)
    server = Restarting()
    run = JobRun(server, "job", version=1, when=TimeRange(0, 60_000))
    with pytest.raises(StoreError), run:
        server.away.extend([StoreError("away")] * 3)
        raise StoreError("it fails")
    assert server.statuses == [("running", ""), ("failed", "StoreError: it fails")]


def test_other_failures_are_recorded_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminated process has little time left."""
    monkeypatch.setattr(runs, "RETRY_S", 0.0)
    server = Restarting()
    with pytest.raises(SystemExit), JobRun(server, "job", version=1, when=TimeRange(0, 60_000)):
        server.away.extend([StoreError("away")] * 3)
        raise SystemExit
    assert server.statuses == [("running", "")]
    assert len(server.away) == 2
