"""The parent's side of the levels process: its settings, and the newest levels that can be read."""

from __future__ import annotations

import sys
import uuid
from contextlib import AsyncExitStack

from exporters.clickhouse.connection import Endpoint
from headroom.config.settings import ServeConfig
from headroom.server.processes.child import ChildProcess, ChildValues
from headroom.server.processes.levels_process import LevelsSettings
from headroom.server.processes.messages import Message

_STOP_S = 5.0
_VALUES = ChildValues(
    "the levels process", (sys.executable, "-m", "headroom.server.processes.levels_process"), restart_after_s=2.0
)


class LevelsWorker:
    """The process: `child`, which `watch` starts. That it fails makes Headroom neither stop nor not ready."""

    def __init__(self, settings: LevelsSettings) -> None:
        self.child = ChildProcess(_VALUES, first=lambda: self._settings.model_dump(), heard=self._heard)
        self.newest_s = 0  # start of the newest 60 seconds whose levels can be read; 0: none yet
        self._settings = settings

    def follow(self, config: ServeConfig) -> None:
        """Takes over changed thresholds and owners."""
        self._settings = self._settings.model_copy(update={"levels": config.levels, "owners": config.owners})
        self.child.send(self._settings.model_dump(include={"levels", "owners"}))

    def _heard(self, message: Message) -> None:
        self.newest_s = message.get("computed", self.newest_s)


def open_levels(config: ServeConfig, nodes: tuple[Endpoint, ...], stack: AsyncExitStack) -> LevelsWorker:
    """The process that writes to the store's nodes; `stack` stops it."""
    settings = LevelsSettings(
        nodes=nodes,
        client_settings=config.store.options.client_settings(),
        service=uuid.uuid4().hex,
        levels=config.levels,
        owners=config.owners,
    )
    worker = LevelsWorker(settings)
    stack.push_async_callback(worker.child.stop, _STOP_S)
    return worker
