"""A service under attack, a bystander that continues to use it, and a report on both."""

import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import psutil
import pytest

from tests.kit.network import push, subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import PATIENCE_S, Served

MB = 1 << 20
_PAUSE_S = 0.02
_QUIET = 20  # requests of the bystander before the attack


@dataclass
class Bystander:
    """A client that continues to use the service. A context manager: it asks again and again in a thread of its own.

    `ask` returns whether it was served; `noted` is called after each answer.
    """

    ask: Callable[[], bool]
    pause_s: float = _PAUSE_S
    noted: Callable[[], None] = lambda: None
    latencies_s: list[float] = field(default_factory=list)
    quiet_s: list[float] = field(default_factory=list)  # latencies before the attack
    refused: int = 0

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the bystander is not answered"

    @property
    def worst_s(self) -> float:
        return max(self.latencies_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self.refused += not self.ask()
            except Exception:
                self.refused += 1
                raise  # pytest prints it
            self.latencies_s.append(time.monotonic() - began_s)
            self.noted()
            self._stop.wait(self.pause_s)


@dataclass
class Report:
    """One attack: what it tried, the response it got, and its effect on other clients."""

    tried: str
    bystander: Bystander
    shown: str = ""
    peak_mb: float = 0.0
    left_mb: float = 0.0

    def line(self) -> str:
        slowest_ms, quiet_ms = 1000 * self.bystander.worst_s, 1000 * p99(self.bystander.quiet_s)
        return (
            f"{self.tried}: {self.shown}; memory {self.peak_mb:+.0f} MB at most, {self.left_mb:+.0f} MB afterwards;"
            f" {len(self.bystander.latencies_s)} requests of another client, p99"
            f" {1000 * p99(self.bystander.latencies_s):.1f} ms (quiet {quiet_ms:.1f} ms), slowest {slowest_ms:.0f} ms,"
            f" {self.bystander.refused} refused"
        )


class Neighbour:
    """Pushes a point with an own number at each call, from `renewed_s` on with a new connection."""

    def __init__(self, connect: Callable[[], RawConnection], renewed_s: float = math.inf) -> None:
        self._connect, self._renewed_s = connect, renewed_s
        self._connection: RawConnection | None = None
        self._until_s = 0.0
        self.acknowledged: set[int] = set()
        self._number = time.time_ns() // 1_000_000

    def __call__(self) -> bool:
        if self._connection is None or time.monotonic() > self._until_s:
            self.close()
            self._connection, self._until_s = self._connect(), time.monotonic() + self._renewed_s
            _, self._instance_id, self._subscription_id, _ = subscription(self._connection)
        self._number += 1
        if push(self._connection, self._instance_id, self._subscription_id, self._number):
            return False
        self.acknowledged.add(self._number)
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)


def p99(latencies_s: list[float]) -> float:
    return sorted(latencies_s)[int(len(latencies_s) * 0.99)]


@contextmanager
def attack(served: Served, tried: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Report]:
    """An attack on the listener. The bystander asks for a subscription; the memory is that of the network process."""
    process = psutil.Process(served.process.pid)
    with RawConnection(served.kafka) as connection:
        ask = lambda: subscription(connection, uuid.uuid4().bytes)[0] == 0  # noqa: E731
        with watched(tried, process, ask, capsys) as report:
            yield report


@contextmanager
def watched(
    tried: str,
    process: psutil.Process,
    ask: Callable[[], bool],
    capsys: pytest.CaptureFixture[str],
    pause_s: float = _PAUSE_S,
) -> Iterator[Report]:
    """Has the bystander ask and samples the memory of `process` while the attack lasts; prints the report."""

    def note_memory() -> None:
        report.peak_mb = max(report.peak_mb, (process.memory_info().rss - before) / MB)

    report = Report(tried, Bystander(ask, pause_s, note_memory))
    for _ in range(_QUIET):
        began_s = time.monotonic()
        assert ask()
        report.bystander.quiet_s.append(time.monotonic() - began_s)
        time.sleep(pause_s)
    before = process.memory_info().rss
    with report.bystander:
        yield report
    assert report.bystander.refused == 0
    report.left_mb = (process.memory_info().rss - before) / MB
    with capsys.disabled():
        print(f"\n  {report.line()}")


def was_closed(one: socket.socket) -> bool:
    """Whether the other side closes without a response, within the time limit of tests."""
    one.settimeout(PATIENCE_S)
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True
