"""Reads the settings again while Headroom serves: on SIGHUP, and by `headroom config reload`.

What can change without a restart is taken over: the quota window, the thresholds of levels, subscriptions, owners, the
level of the log. TLS files are read again on their own when they change. Other changes are named, and wait for a
restart; with a fault in the new settings nothing changes.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
import structlog
from pydantic import BaseModel

from headroom.config.quotas import LevelsConfig
from headroom.config.settings import ConfigError, ServeConfig
from headroom.daemon_thread import in_daemon_thread
from headroom.errors import ServeError
from headroom.logs import set_level
from headroom.owners import owners_of

log = structlog.get_logger(__name__)

RESULT = "reload.json"  # in the data directory, for the command
_RELOADABLE = frozenset(
    (*(f"levels.{name}" for name in LevelsConfig.model_fields), "quotas.window_num", "quotas.window_size_ms",
     "log_level", "owners")
)  # fmt: skip


class Reloaded(NamedTuple):
    """Names of settings that changed."""

    reloaded: list[str]
    needs_restart: list[str]
    faults: list[str]


def differences(before: BaseModel, after: BaseModel, prefix: str = "") -> list[str]:
    """The names of all settings whose values differ."""
    names = []
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, BaseModel) and type(old) is type(new):
            names += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            names.append(prefix + name)
    return names


class Reload:
    """`load` reads all sources of settings and raises ConfigError; `followers` get the new settings, and read again
    what is read periodically. `owners`: those in force."""

    def __init__(
        self,
        config: ServeConfig,
        load: Callable[[], ServeConfig],
        followers: Sequence[Callable[[ServeConfig], Awaitable[None]]],
    ) -> None:
        self.owners = owners_of(config.owners)
        self._config = config
        self._load = load
        self._followers = followers

    async def run(self) -> Reloaded:
        """Logs the result and writes it to RESULT."""
        result = await self._reloaded()
        log.info("reloaded", **result._asdict())
        path = self._config.data / RESULT
        document: dict[str, Any] = {"pid": os.getpid(), "at_ns": time.time_ns(), **result._asdict()}
        temporary = path.with_suffix(".new")  # replaced at once, so that the command never reads a part of it
        try:
            temporary.write_bytes(orjson.dumps(document))
            temporary.replace(path)
        except OSError as exc:
            log.warning("cannot write the result of the reload", path=str(path), error=exc.strerror)
        return result

    async def _reloaded(self) -> Reloaded:
        try:
            new = self._load()
            owners = await in_daemon_thread(partial(owners_of, new.owners))  # a large file takes a second
        except ConfigError as exc:
            return Reloaded([], [], exc.faults)
        except ServeError as exc:
            return Reloaded([], [], [str(exc)])
        changed = [name for name in differences(self._config, new) if name != "owners"]
        if owners != self.owners:  # the file may have changed, or another one is named
            self.owners = owners
            changed.append("owners")
        set_level(new.log_level)
        for follow in self._followers:
            await follow(new)
        window = {"window_num": new.quotas.window_num, "window_size_ms": new.quotas.window_size_ms}
        quotas = self._config.quotas.model_copy(update=window)
        taken_over = {"quotas": quotas, "levels": new.levels, "log_level": new.log_level, "owners": new.owners}
        self._config = self._config.model_copy(update=taken_over)
        return Reloaded(
            ["subscriptions", *(name for name in changed if name in _RELOADABLE)],
            [name for name in changed if name not in _RELOADABLE],
            [],
        )
