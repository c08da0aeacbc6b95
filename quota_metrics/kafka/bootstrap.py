"""Connects to the first of several brokers that answers. Each attempt has the full timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from quota_metrics.kafka.connection import KafkaConnection
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError

Address: TypeAlias = tuple[str, int]

_NEXT_AFTER_S = 1.0


async def first_to_answer(
    addresses: Sequence[Address], connect: Callable[[Address], Awaitable[KafkaConnection]]
) -> tuple[Address, KafkaConnection]:
    """Tries the addresses in order; starts the next attempt when one fails or has not answered for a second (RFC 8305).

    Raises ClusterError when none answers: the error of the only broker, or one that names all.
    """
    waiting = list(addresses)
    running: dict[asyncio.Future[KafkaConnection], Address] = {}
    failures: list[ClusterError] = []
    try:
        while waiting or running:
            if waiting:
                address = waiting.pop(0)
                running[asyncio.ensure_future(connect(address))] = address
            done, _ = await asyncio.wait(
                running, timeout=_NEXT_AFTER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                address = running.pop(attempt)
                try:
                    return address, attempt.result()
                except ClusterError as exc:
                    failures.append(exc)
    finally:
        for attempt in running:
            attempt.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, KafkaConnection):  # it was established in the meantime
                await result.close()
    if len(failures) == 1:
        raise failures[0]
    raise BrokerUnreachableError("no broker answers: " + "; ".join(map(str, failures)))
