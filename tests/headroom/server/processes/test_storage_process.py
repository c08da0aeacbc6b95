"""headroom/server/processes/storage_process.py: its first message to the parent, and its exit after a fatal fault."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from exporters.clickhouse.store import PermanentWriteError, Store
from exporters.spool.reader import SpoolReader
from headroom.server.processes.messages import Message
from headroom.server.processes.parent_pipes import ParentThread
from headroom.server.processes.storage_process import _Follower
from telemetry.ingest.ingester import Ingester
from tests.kit.worker import worker_settings


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
