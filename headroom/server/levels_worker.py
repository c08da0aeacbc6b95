"""The parent's side of the levels process: its settings, and the newest levels that can be read."""

from __future__ import annotations

import sys
import uuid
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

from exporters.clickhouse.connection import Endpoint
from headroom.config.settings import ServeConfig
from headroom.server.processes.child import ChildProcess, ChildValues
from headroom.server.processes.levels_process import LevelsSettings
from headroom.server.processes.messages import Message
from headroom.server.processes.store_nodes import StoreNodes
from quota_metrics.verdict.thresholds import Thresholds

_STOP_S = 5.0
_VALUES = ChildValues(
    "the levels process", (sys.executable, "-m", "headroom.server.processes.levels_process"), restart_after_s=2.0
)


class LevelsWorker:
    """The process: `child`, which `watch` starts. That it fails makes Headroom neither stop nor not ready."""

    def __init__(self, settings: LevelsSettings) -> None:
        self.child = ChildProcess(_VALUES, first=lambda: asdict(self._settings), heard=self._heard)
        self.newest_s = 0  # start of the newest 60 seconds whose levels can be read; 0: none yet
        self._settings = settings

    def follow(self, thresholds: Thresholds, owners: Path | None) -> None:
        """Takes over changed thresholds and owners."""
        self._settings = replace(self._settings, thresholds=list(thresholds), owners=str(owners or ""))
        self.child.send({"thresholds": self._settings.thresholds, "owners": self._settings.owners})

    def _heard(self, message: Message) -> None:
        self.newest_s = message.get("computed", self.newest_s)


def open_levels(config: ServeConfig, nodes: tuple[Endpoint, ...], stack: AsyncExitStack) -> LevelsWorker:
    """The process that writes to the store's nodes; `stack` stops it."""
    settings = LevelsSettings(
        service=uuid.uuid4().hex,
        every_ms=config.levels.every_ms,
        thresholds=list(config.levels.thresholds),
        owners=str(config.owners or ""),
        store=asdict(StoreNodes.of(nodes, config.store.options)),
    )
    worker = LevelsWorker(settings)
    stack.push_async_callback(worker.child.stop, _STOP_S)
    return worker
