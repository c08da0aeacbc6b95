"""A run whose server fails is recorded as failed once the server is back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spark_jobs import job_runs
from spark_jobs.clickhouse.client import ClickHouse, SourceError
from spark_jobs.job_runs import JobRun
from spark_jobs.time_range import TimeRange


class Restarting(ClickHouse):
    """A server that is unavailable for some statements."""

    __slots__ = ("away", "statuses")
    away: list[SourceError]
    statuses: list[tuple[str, str]]

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        object.__setattr__(self, "away", [])
        object.__setattr__(self, "statuses", [])

    def command(self, sql: str, parameters: Mapping[str, Any], *, token: str = "") -> None:
        if self.away:
            raise self.away.pop()
        self.statuses.append((parameters["status"], parameters["error"]))

    def rows(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return []


def test_server_failure_is_recorded_after_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runs, "RETRY_S", 0.0)
    server = Restarting()
    run = JobRun(server, "job", version=1, when=TimeRange(0, 60_000))
    with pytest.raises(SourceError), run:
        server.away.extend([SourceError("away")] * 3)
        raise SourceError("it fails")
    assert server.statuses == [("running", ""), ("failed", "SourceError: it fails")]


def test_other_failures_are_recorded_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminated process has little time left."""
    monkeypatch.setattr(job_runs, "RETRY_S", 0.0)
    server = Restarting()
    with pytest.raises(SystemExit), JobRun(server, "job", version=1, when=TimeRange(0, 60_000)):
        server.away.extend([SourceError("away")] * 3)
        raise SystemExit
    assert server.statuses == [("running", "")]
    assert len(server.away) == 2
