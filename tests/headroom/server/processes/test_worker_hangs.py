"""A storage worker that hangs is killed and restarted; its batch is then split."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from headroom.server.processes.messages import Message
from headroom.server.processes.storage_process import StorageWorker
from tests.headroom.server.processes.pushes import push
from tests.kit.serving import Served, config_file, eventually
from tests.kit.worker import worker_settings

SEGMENT = "00000000000000000001-pushes-0000000a-v1.spool"


@pytest.mark.parametrize(("stage", "idle_s"), [("decoding", 31), ("writing", 601)])
def test_worker_without_progress_is_killed(
    tmp_path: Path, stage: str, idle_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = StorageWorker(worker_settings(tmp_path))
    kills: list[str] = []
    monkeypatch.setattr(worker.child, "kill", lambda: kills.append("killed"))
    fine: list[Message] = [
        {"stage": "idle", "idle_s": 9e9},
        {"stage": "decoding", "idle_s": 29},
        {"stage": "writing", "idle_s": 500},
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


@pytest.mark.clickhouse
def test_suspended_worker_is_replaced_and_all_records_are_written(tmp_path: Path) -> None:
    with Served(tmp_path, *config_file(tmp_path, push_ms=100)) as headroom:
        [worker] = headroom.children("headroom.server.processes.storage_process")
        os.kill(worker.pid, signal.SIGSTOP)
        asyncio.run(push(headroom.address, 7))
        found = eventually(headroom.metrics, lambda found: found["headroom_records:written"] == 2)  # and the instance
        assert found["headroom_worker_restarts_total"] == 1
        assert found["headroom_records_difference"] == 0
        assert headroom.stop() == 0
