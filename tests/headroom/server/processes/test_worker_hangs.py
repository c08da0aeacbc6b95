"""A storage worker that hangs is killed and restarted; its batch is then split."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from headroom.server.processes import storage_supervisor
from headroom.server.processes.storage_supervisor import StorageWorker
from tests.headroom.server.processes.test_store_away import push
from tests.kit.serving import Served, eventually
from tests.kit.worker import worker_settings

SEGMENT = "00000000000000000001-pushes-0000000a-v1.spool"


class ScriptedWorker(StorageWorker):
    """A worker with the given messages."""

    def __init__(self, directory: Path) -> None:
        super().__init__(worker_settings(directory))
        self.killed = False

    async def hears(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """The results of the messages, up to the one at which the worker is killed."""
        queue = [*messages]

        async def line(_: Any) -> dict[str, Any]:
            if not queue:
                await asyncio.sleep(3600)
            return queue.pop(0)

        self._line = line  # type: ignore[method-assign,assignment] # a static method
        taken = []
        while message := await self._next(self):  # type: ignore[arg-type] # stands for the process
            self._heard(message)
            taken.append(message)
        return taken

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(("stage", "idle_s"), [("decoding", 31), ("writing", 601)])
def test_worker_without_progress_is_killed(tmp_path: Path, stage: str, idle_s: float) -> None:
    worker = ScriptedWorker(tmp_path)
    fine = [{"stage": "idle", "idle_s": 9e9}, {"stage": "decoding", "idle_s": 29}, {"stage": "writing", "idle_s": 500}]
    batch = {"batch": [SEGMENT, 10, 90]}
    assert asyncio.run(worker.hears(*fine, batch, {"stage": stage, "idle_s": idle_s})) == [*fine, batch]
    assert worker.killed


def test_silent_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_supervisor, "_NO_PROGRESS_S", 0.05)
    worker = ScriptedWorker(tmp_path)
    assert asyncio.run(worker.hears({"batch": None})) == [{"batch": None}]
    assert worker.killed


def test_worker_is_not_killed_when_the_event_loop_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_supervisor, "_NO_PROGRESS_S", 0.6)
    worker = ScriptedWorker(tmp_path)

    async def line(_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"stage": "idle", "idle_s": 0}

    async def next_message() -> dict[str, Any]:
        worker._line = line  # type: ignore[method-assign,assignment] # a static method
        message = asyncio.ensure_future(worker._next(worker))  # type: ignore[arg-type] # stands for the process
        asyncio.get_running_loop().call_soon(time.sleep, 1.0)
        return await message

    assert asyncio.run(next_message()) == {"stage": "idle", "idle_s": 0}
    assert not worker.killed


def test_batch_that_kills_the_worker_is_split(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path)
    sizes = []
    for _ in range(5):
        worker._heard({"batch": [SEGMENT, 10, 90]})
        worker._suspect_batch()
        assert worker._settings.suspect is not None
        sizes.append(worker._settings.suspect[3])
    assert sizes == [1250, 78, 4, 1, 0]
    worker._heard({"batch": [SEGMENT, 90, 99]})
    worker._heard({"batch": None})
    worker._suspect_batch()  # it died while idle
    assert worker._settings.suspect == (SEGMENT, 10, 90, 0, 5)


@pytest.mark.clickhouse
def test_suspended_worker_is_replaced_and_all_records_are_written(tmp_path: Path) -> None:
    (tmp_path / "subscriptions.yaml").write_text("all: {metrics: '*', interval.ms: 100}\n")
    config = tmp_path / "headroom.yaml"
    config.write_text(f"subscriptions: {tmp_path / 'subscriptions.yaml'}\n")
    with Served(tmp_path, "--config", str(config)) as headroom:
        [worker] = headroom.children("headroom.server.processes.storage_process")
        os.kill(worker.pid, signal.SIGSTOP)
        assert asyncio.run(push(headroom.address, 7)) == 0
        found = eventually(headroom.metrics, lambda found: found["headroom_records:written"] == 2)  # and the instance
        assert found["headroom_worker_restarts_total"] == 1
        assert found["headroom_records_difference"] == 0
        assert headroom.stop() == 0
