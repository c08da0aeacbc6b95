"""Closes client connections that exceed a timeout: unfinished requests and handshakes, idle connections."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from mypy_extensions import mypyc_attr

from telemetry.gateway.admission import Admission, Reason

_SWEEP_S: Final = 1.0
_QUIET_SWEEPS: Final = 8  # of the idle timeout
_WAITING_SWEEPS: Final = 24  # of a connection that waits for a response of the broker


@mypyc_attr(allow_interpreted_subclasses=True)
class TimedConnection(ABC):
    """The part of a client connection that timeouts need."""

    active: bool = True  # bytes have passed in either direction since the last sweep
    quiet_sweeps: int = 0

    @property
    @abstractmethod
    def waits_for_broker(self) -> bool:
        """Whether a response is pending, which may take long."""

    @abstractmethod
    def close_for(self, reason: Reason) -> None:
        """Counts the reason and closes at once."""

    @abstractmethod
    def keep_upstream_alive(self) -> None:
        """Called at each sweep."""


def close_idle(clients: Iterable[TimedConnection]) -> None:
    """One sweep: closes connections without traffic in the last _QUIET_SWEEPS sweeps."""
    for client in tuple(clients):
        client.quiet_sweeps = 0 if client.active else client.quiet_sweeps + 1
        client.active = False
        if client.quiet_sweeps > (_WAITING_SWEEPS if client.waits_for_broker else _QUIET_SWEEPS):
            client.close_for(Reason.IDLE)
        else:
            client.keep_upstream_alive()


async def enforce_timeouts(
    admission: Admission[TimedConnection], clients: Callable[[], Iterable[TimedConnection]]
) -> None:
    """Runs until it is cancelled."""
    loop = asyncio.get_running_loop()
    idle_sweep_s = admission.limits.idle_timeout_s / _QUIET_SWEEPS
    next_idle_s = loop.time() + idle_sweep_s
    while True:
        await asyncio.sleep(min(_SWEEP_S, idle_sweep_s))
        for client, reason in admission.overdue(loop.time()):
            client.close_for(reason)
        if loop.time() >= next_idle_s:
            next_idle_s = loop.time() + idle_sweep_s
            close_idle(clients())
