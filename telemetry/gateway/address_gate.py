"""Whether the brokers' quotas on addresses admit a connection: max.connections.per.ip and connection_creation_rate.

Decided once for all network processes (quota_metrics.measure.connection_quotas), so the answer is awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quota_metrics.measure.connection_quotas import ADMITTED
from telemetry.gateway.connection_limits import Reason


async def _admit(_address: str, _broker_id: int) -> int:
    return ADMITTED


@dataclass(slots=True)
class AddressGate:
    """`ask` and `left` are ConnectionQuotas' connect and disconnect. They are not called while nothing is limited."""

    ask: Callable[[str, int], Awaitable[int]] = _admit
    left: Callable[[str, int], None] = lambda _address, _broker_id: None
    is_limited: bool = False


class GatePass:
    """One connection's place at one broker."""

    __slots__ = ("_gate", "_place")

    def __init__(self, gate: AddressGate) -> None:
        self._gate = gate
        self._place: tuple[str, int] | None = None

    async def enter(self, address: str, broker_id: int) -> tuple[Reason, int] | None:
        """Asks for a place, after the one that the connection has is given back.

        Returns why the connection is to be closed, and after how many milliseconds.
        """
        self.leave()
        if not self._gate.is_limited:
            return None
        delay_ms = await self._gate.ask(address, broker_id)
        if delay_ms == ADMITTED:
            self._place = (address, broker_id)
            return None
        return (Reason.ADDRESS_RATE, delay_ms) if delay_ms > 0 else (Reason.ADDRESS_CONNECTIONS, 0)

    def leave(self) -> None:
        """The connection has ended, or tries another broker."""
        if self._place is not None:
            self._gate.left(*self._place)
            self._place = None
