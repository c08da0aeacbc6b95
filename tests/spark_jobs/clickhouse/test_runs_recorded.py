"""What job_runs says of runs: failures of the server are recorded once it is back, and runs wait for earlier ones. How
their rows are divided into inserts."""

import threading
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError
from spark_jobs.clickhouse import runs
from spark_jobs.clickhouse.runs import INSERT_ROWS, JobRun, insert_starts
from spark_jobs.clickhouse.source import NothingToReadError, clickhouse_of
from spark_jobs.options import JobOptions
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import eventually

OPTIONS = JobOptions("", TimeRange(0, 60_000))


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
    run = JobRun(server, "job", OPTIONS)
    with pytest.raises(StoreError), run:
        server.away.extend([StoreError("away")] * 3)
        raise StoreError("it fails")
    assert server.statuses == [("running", ""), ("failed", "StoreError: it fails")]
    with (
        pytest.raises(NothingToReadError),
        JobRun(server, "job", OPTIONS),
    ):  # a quiet night, which no alert calls a failure
        raise NothingToReadError("there is no usage")
    assert server.statuses[2:] == [("running", ""), ("succeeded", "there is no usage")]


def test_other_failures_are_recorded_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminated process has little time left."""
    monkeypatch.setattr(runs, "RETRY_S", 0.0)
    server = Restarting()
    with pytest.raises(SystemExit), JobRun(server, "job", OPTIONS):
        server.away.extend([StoreError("away")] * 3)
        raise SystemExit
    assert server.statuses == [("running", "")]
    assert len(server.away) == 2


@pytest.mark.clickhouse
def test_part_of_a_run_does_not_wait_for_a_run_that_waits_for_it(
    clickhouse: RunningClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one computes late rows of an hour ago by a run of its own; the second covers both ranges."""
    monkeypatch.setattr(runs, "WAIT_S", 20.0)
    server = clickhouse_of(clickhouse.url)
    recent, late = TimeRange(7_200_000, 7_260_000), TimeRange(3_600_000, 3_660_000)
    ended: list[str] = []

    def second() -> None:
        with JobRun(server, "parts", JobOptions("", TimeRange(late.from_ms, recent.to_ms)), version=2):
            ended.append("second")

    waiting = threading.Thread(target=second)
    with JobRun(server, "parts", JobOptions("", recent), version=1) as first:
        waiting.start()
        running = "SELECT count() AS n FROM job_runs FINAL WHERE job = 'parts' AND status = 'running'"
        eventually(lambda: server.rows(running)[0]["n"], lambda number: number == 2)
        with JobRun(server, "parts", JobOptions("", late), version=first.version):
            ended.append("part")
    waiting.join()
    assert ended == ["part", "second"]


@given(st.lists(st.integers(1, 2 * INSERT_ROWS), min_size=1, max_size=40))
def test_inserts_have_whole_windows_and_few_rows(rows: list[int]) -> None:
    starts = insert_starts(enumerate(rows))
    bounds = [0, *starts, len(rows)]
    inserts = [rows[first:until] for first, until in pairwise(bounds)]
    assert [count for insert in inserts for count in insert] == rows
    assert all(insert and (len(insert) == 1 or sum(insert) <= INSERT_ROWS) for insert in inserts)
    for insert, following in pairwise(inserts):
        assert sum(insert) + following[0] > INSERT_ROWS
