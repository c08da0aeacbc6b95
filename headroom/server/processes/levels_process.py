"""The levels process: computes the levels of clients into the store, beside the processes that forward frames.

LevelsWorker is its parent's side; messages.py has the protocol. Its settings include the store's password. It gets
{"levels", "owners"} when those change, and sends {"computed": SECOND} when newer levels can be read: the start of the
60 seconds that they are about. A store that is away is asked again.
"""

import sys
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import structlog

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreError, is_without_schema
from headroom.clock import now_ms
from headroom.config.settings import LevelsConfig, ServeConfig
from headroom.config.types import Section
from headroom.errors import ServeError
from headroom.owners import owners_of
from headroom.server.process_limits import tune_for_batches
from headroom.server.processes.child_supervisor import ChildProcess, ChildValues
from headroom.server.processes.level_schedule import LevelSchedule
from headroom.server.processes.messages import READY, Message
from headroom.server.processes.parent_pipes import parent_of_background_process
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.minutes.teams import Teams

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.5
_AFTER_FAULT_S: Final = 2.0
_TIMEOUT_S: Final = 60.0
_EXECUTION_S: Final = 50  # then ClickHouse says itself that it takes too long
_STOP_S: Final = 5.0
_VALUES: Final = ChildValues(
    "the levels process", (sys.executable, "-P", "-m", "headroom.server.processes.levels_process"), restart_after_s=2.0
)


class LevelsSettings(Section):
    """The first message of the parent."""

    nodes: tuple[Endpoint, ...]
    client_settings: dict[str, str]  # of connections to the store
    service: str  # name of this run of the service
    levels: LevelsConfig
    owners: Path | None


class LevelsWorker:
    """The parent's side: `child`, which `watch` starts. That it fails makes Headroom neither stop nor not ready."""

    def __init__(self, settings: LevelsSettings) -> None:
        self.child = ChildProcess(_VALUES, first=lambda: self._settings.model_dump(), heard=self._heard)
        self.newest_s = 0  # start of the newest 60 seconds whose levels can be read; 0: none yet
        self._settings = settings

    async def follow(self, config: ServeConfig) -> None:
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


def main() -> int:
    parent = parent_of_background_process()
    settings = LevelsSettings(**parent.settings)
    tune_for_batches()
    limits = {"max_execution_time": str(_EXECUTION_S)}
    store = ClickHouse(settings.nodes, _TIMEOUT_S, settings={**limits, **settings.client_settings})
    teams = Teams()
    schedule = LevelSchedule(
        store,
        LiveLevels(store, now_ms, teams),
        settings.service,
        lambda start_s: parent.send({"computed": start_s}),
        now_ms,
        settings.levels.every_ms,
    )
    changes: list[Message] = [parent.settings]
    parent.follow(changes.append)
    parent.send(READY)
    fault = ""
    while not parent.stopping.is_set():
        while changes:
            message = changes.pop(0)
            schedule.thresholds = LevelsConfig(**message["levels"]).thresholds
            try:
                teams.follow(owners_of(Path(message["owners"]) if message["owners"] else None))
            except ServeError as exc:  # the parent read it before: it has just been changed
                log.warning("the owners stay as they are", error=str(exc))
        try:
            schedule.step()
        except StoreError as exc:
            if str(exc) != fault and not is_without_schema(exc):  # the storage worker makes the schema
                fault = str(exc)
                log.warning("cannot compute levels", error=fault)
            parent.stopping.wait(_AFTER_FAULT_S)
            continue
        if fault:
            log.info("levels are computed again")
            fault = ""
        parent.stopping.wait(_POLL_S - time.time() % _POLL_S)
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
