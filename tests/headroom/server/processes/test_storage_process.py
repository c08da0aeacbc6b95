"""The storage process: its first message, its exit after a fatal fault, how long it collects, when its progress makes
Headroom not ready, and the difference between its counts and those of its parent."""

import errno
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.store import PermanentWriteError, Store
from exporters.spool.reader import SpoolReader
from headroom.config.settings import StoreConfig, TelemetryConfig
from headroom.server.processes.messages import Message
from headroom.server.processes.parent_pipes import ParentThread
from headroom.server.processes.storage_process import (
    StorageWorker,
    StoreProgress,
    WorkerSettings,
    _Follower,
    next_interval_s,
)
from headroom.server.storage import CountDifference
from telemetry.ingest.ingester import Ingester


def worker_settings(directory: Path) -> WorkerSettings:
    """For a spool and a quarantine in `directory`, and a store that does not answer."""
    nodes = (Endpoint.parse("http://127.0.0.1:1"),)
    return WorkerSettings(data=directory, nodes=nodes, store=StoreConfig(), telemetry=TelemetryConfig())


class ScriptedParent(ParentThread):
    """Keeps what is sent; dies at once."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.is_orphan = False
        self.sent: list[Message] = []

    def follow(self, heard: Callable[[Message], None] = lambda _: None) -> None:
        self.stopping.set()

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Failing:
    """A store."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    def migrate(self, _: object) -> None:
        raise self._fault


@pytest.mark.parametrize(
    ("fault", "reported"),
    [
        (PermanentWriteError("refused\nfor good"), "refused for good"),
        (KeyError("what nobody thought of"), "'what nobody thought of'"),
        (AssertionError(), "AssertionError()"),
    ],
)
def test_failed_migration_is_reported_to_the_parent(tmp_path: Path, fault: Exception, reported: str) -> None:
    reader = SpoolReader(tmp_path / "spool")
    parent = ScriptedParent()
    _Follower(reader, cast(Store, Failing(fault)), worker_settings(tmp_path), parent).begin()
    reader.close()
    [first] = parent.sent
    assert (first["ready"], first["fault"]) == (True, reported)


def test_unreadable_spool_does_not_end_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A death would count against the batch that was begun, which is then read in pieces."""
    reader = SpoolReader(tmp_path / "spool")
    parent = ScriptedParent()
    store = cast(Store, Failing(PermanentWriteError("refused")))
    follower = _Follower(reader, store, worker_settings(tmp_path), parent)
    follower.begin()

    def unreadable(self: Ingester) -> dict[str, object]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Ingester, "as_dict", unreadable)
    parent.stopping.set()
    follower.run()
    reader.close()
    assert [message for message in parent.sent if "counts" in message] == parent.sent[:1]


FATAL = """
from exporters.clickhouse.store import Store
from headroom.server.processes import storage_process
from telemetry.ingest.ingester import Ingester

def step(self, now_ms):
    raise MemoryError("a part is too large")

Store.migrate = Store.check = Store.check_reading = lambda *_: None
Ingester.step = step
raise SystemExit(storage_process.main())
"""


def test_fatal_fault_exits_the_process(tmp_path: Path) -> None:
    settings = worker_settings(tmp_path).model_dump_json()
    with subprocess.Popen(
        [sys.executable, "-c", FATAL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None and worker.stderr is not None
        worker.stdin.write(f"{settings}\n")
        worker.stdin.flush()  # and stays open: the parent is alive
        assert worker.wait(60) == 1
        assert "MemoryError: a part is too large" in worker.stderr.read()


@pytest.mark.parametrize(
    ("last_s", "points", "expected_s"),
    [
        (1.0, 0, 1.0),
        (1.0, 99_999, 1.0),
        (1.0, 100_000, 2.0),
        (2.0, 199_999, 1.0),  # the rate counts, not the size of the batch
        (2.0, 800_000, 2.0),
    ],
)
def test_interval_follows_the_rate_of_points(last_s: float, points: int, expected_s: float) -> None:
    assert next_interval_s(1.0, last_s, points) == expected_s


STALLED = "nothing was written for 61 s although the spool holds records: away"
REFUSED = "the store refuses records"


@pytest.mark.parametrize(
    ("reports", "reasons"),
    [
        pytest.param([(5, 0, 0, 100), (5, 3, 0, 130)], {159: None, 161: STALLED}, id="nothing is written"),
        pytest.param([(5, 0, 0, 100), (5, 3, 0, 130), (6, 2, 0, 162)], {163: None}, id="written again"),
        pytest.param([(5, 0, 0, second) for second in range(0, 1000, 10)], {1000: None}, id="the spool is empty"),
        pytest.param([(5, 0, 2, 100)], {101: None}, id="refused in an earlier run"),
        pytest.param([(5, 0, 2, 100), (5, 0, 3, 110)], {169: REFUSED, 171: None}, id="refused once"),
        pytest.param([(5, 0, 0, 100), (9, 0, 1, 101)], {101: None}, id="others are written in the same report"),
        pytest.param([(9, 0, 1, 101), (9, 0, 2, 102)], {103: REFUSED}, id="refused alone"),
        pytest.param([(9, 0, 1, 101), (9, 0, 2, 102), (10, 0, 2, 104)], {104: None}, id="written in a later report"),
        pytest.param([(5, 3, second, second) for second in range(200)], {200: REFUSED}, id="refused again and again"),
        pytest.param([(5, 3, 1, 198), (5, 3, 2, 199), (6, 3, 3, 201)], {201: None}, id="until one is written"),
    ],
)
def test_progress_decides_whether_it_is_ready(
    reports: list[tuple[int, int, int, int]], reasons: dict[int, str | None]
) -> None:
    """A record that no table accepts could otherwise take the service out of the load balancer."""
    progress = StoreProgress()
    for written, buffered, refused, at_s in reports:
        counts = {"written": written, "dropped": refused, "buffered": buffered, "drop_reasons": {"refused": refused}}
        progress.heard(counts, float(at_s))
    assert {at_s: progress.not_ready_reason(60.0, at_s, "away") for at_s in reasons} == reasons


def run(difference: CountDifference, seconds: int, *, missing: int = 0, start: int = 0, lag: float = 1.0) -> int:
    """A thousand records a second; the worker's count is up to a second behind or ahead of the parent's."""
    rng = random.Random(7)
    for second in range(start, start + seconds):
        received = 1_000 * second
        accounted = round(received + 1_000 * rng.uniform(-lag, lag)) - missing
        difference.sample(float(second), received, accounted)
    return difference.value


def test_lagging_counts_make_no_difference() -> None:
    assert run(CountDifference(), 60) == 0


def test_missing_records_are_reported_at_rest() -> None:
    difference = CountDifference()
    run(difference, 60)
    for second in range(60, 90):
        difference.sample(float(second), 60_000, 59_997)
    assert difference.value == 3
    for second in range(90, 120):
        difference.sample(float(second), 60_000, 60_002)
    assert difference.value == -2


def test_many_missing_records_are_reported_under_load() -> None:
    difference = CountDifference()
    assert run(difference, 60, missing=50_000) > 30_000


def test_unreported_counts_of_a_killed_process_make_no_difference() -> None:
    difference = CountDifference()
    run(difference, 30)
    difference.resynchronize()
    assert run(difference, 60, missing=-700, start=30) == 0
    for second in range(90, 120):
        difference.sample(float(second), 90_000, 40_000)
    assert difference.value > 30_000


SEGMENT = "00000000000000000001-pushes-0000000a-v1.spool"


@pytest.mark.parametrize(("stage", "idle_s", "nodes"), [("decoding", 31, 3), ("writing", 601, 1), ("writing", 1801, 3)])
def test_worker_without_progress_is_killed(
    tmp_path: Path, stage: str, idle_s: float, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = worker_settings(tmp_path)
    worker = StorageWorker(settings.model_copy(update={"nodes": settings.nodes * nodes}))
    kills: list[str] = []
    monkeypatch.setattr(worker.child, "kill", lambda: kills.append("killed"))
    fine: list[Message] = [
        {"stage": "idle", "idle_s": 9e9},
        {"stage": "decoding", "idle_s": 29},
        {"stage": "writing", "idle_s": 500 * nodes},
    ]
    for message in (*fine, {"batch": [SEGMENT, 10, 90]}):
        worker.heard(message)
    assert kills == []
    worker.heard({"stage": stage, "idle_s": idle_s})
    assert kills == ["killed"]


def test_batch_that_kills_the_worker_is_split(tmp_path: Path) -> None:
    worker = StorageWorker(worker_settings(tmp_path))
    sizes = []
    for _ in range(5):
        worker.heard({"batch": [SEGMENT, 10, 90]})
        worker.suspect_batch()
        assert worker.settings.suspect is not None
        sizes.append(worker.settings.suspect[3])
    assert sizes == [1250, 78, 4, 1, 0]
    worker.heard({"batch": [SEGMENT, 90, 99]})
    worker.heard({"batch": None})
    worker.suspect_batch()  # it died while idle
    assert worker.settings.suspect == (SEGMENT, 10, 90, 0, 5)
