"""A process that owns an embedded store, for tests: one engine per process, and never across a fork."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from exporters.clickhouse.sql_door import SqlDoor
from exporters.clickhouse.store import Store

_T = TypeVar("_T")
_open: dict[str, Any] = {}


class EngineProcess:
    """Runs module-level functions beside the store; what they take and return is pickled."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor
        self.host, self.port = self._executor.submit(_open_listener).result()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """`function(store, *arguments)` in the process of the engine."""
        return self._executor.submit(_call, function, arguments).result()


@contextlib.contextmanager
def engine_process(directory: Path) -> Iterator[EngineProcess]:
    """A store with the schema applied, and its SQL endpoint, until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_open_store, initargs=(directory,)) as executor:
        yield EngineProcess(executor)
        executor.submit(_close).result()


def _open_store(directory: Path) -> None:
    _open["store"] = Store.embedded(directory)
    _open["store"].migrate()


def _open_listener() -> tuple[str, int]:
    _open["receiver"] = SqlDoor(_open["store"], "127.0.0.1", 0, max_queries=4, max_body_bytes=8 << 20)
    address: tuple[str, int] = _open["receiver"].start()
    return address


def _call(function: Callable[..., _T], arguments: tuple[Any, ...]) -> _T:
    return function(_open["store"], *arguments)


def _close() -> None:
    _open["receiver"].stop()
    _open["store"].close()
