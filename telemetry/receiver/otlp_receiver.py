"""Accepts OTLP requests from gRPC and HTTP: parses, splits by client, appends to the spool and waits for the flush."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from exporters.model import RecordKind
from exporters.spool.writer import PushSpool, SpoolFull
from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.otlp_export import Export, OtlpLimits, export_of
from telemetry.receiver.otlp_identity import Dialect, OtlpCaller
from telemetry.receiver.otlp_parsing import OtlpError, ParsedRequest

RETRY_AFTER_S: Final = 5
_READ_IN_LOOP_BYTES = 32_768  # usually a millisecond of the event loop; larger requests are parsed in a thread
_MAX_HELD_BYTES = 67_108_864  # of all requests that wait or are parsed, after decompression


class OtlpBusyError(Exception):
    """Nothing was stored; the sender should retry after RETRY_AFTER_S."""


@dataclass(eq=False)
class OtlpReceiver:
    """Accepts requests for one cluster. `requests` counts them by (transport, outcome), labels of a closed set.

    `charge(address, nbytes)` charges a request that nobody authenticated to its address, and returns a throttle time in
    ms when the address is over its budget.
    """

    spool: PushSpool
    commit: GroupCommit
    cluster: str
    dialect: Dialect
    now_ms: Callable[[], int]
    limits: OtlpLimits
    charge: Callable[[str, int], int]

    def __post_init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.points = 0
        self.rejected_points = 0
        self.replaced_texts = 0  # requests with texts that were not UTF-8
        self._parsing = asyncio.Semaphore(1)  # in a thread; several would only take turns
        self._held_bytes = 0

    async def accept(self, body: bytes, parse: Callable[[bytes], ParsedRequest], sender: OtlpCaller) -> Export:
        """Returns after the flush of the spool. `parse` converts bytes to a request and raises OtlpError.

        Raises OtlpError when the request is invalid, OtlpBusyError when the spool is full or cannot be written, or when
        too many requests wait, or when the sender's address is over its budget.
        """
        try:
            if not sender.trusted and self.charge(sender.address, len(body)):
                raise OtlpBusyError("the address is over its budget")
            export, records = await self._parse(body, parse, sender)
            try:  # all records or none: a sender that retries sends all of them again
                self.spool.append_all(RecordKind.PUSH, records)
            except SpoolFull as exc:
                raise OtlpBusyError("the spool is full") from exc
            if export.parts and not await self.commit.flushed():
                raise OtlpBusyError("the spool cannot be written")
        except (OtlpError, OtlpBusyError) as exc:
            self.requests[sender.transport, "busy" if isinstance(exc, OtlpBusyError) else "invalid"] += 1
            raise
        self.requests[sender.transport, "partial" if export.rejected else "accepted"] += 1
        self.points += sum(part.points for part in export.parts)
        self.rejected_points += export.rejected
        self.replaced_texts += export.has_replaced_texts
        return export

    async def _parse(
        self, body: bytes, parse: Callable[[bytes], ParsedRequest], sender: OtlpCaller
    ) -> tuple[Export, list[bytes]]:
        def read() -> tuple[Export, list[bytes]]:
            export = export_of(parse(body), sender, cluster=self.cluster, dialect=self.dialect, limits=self.limits)
            now_ms = self.now_ms()
            return export, [part.record(now_ms) for part in export.parts]

        if len(body) <= _READ_IN_LOOP_BYTES:
            return read()
        if self._held_bytes and self._held_bytes + len(body) > _MAX_HELD_BYTES:
            raise OtlpBusyError("too many large requests at once")
        self._held_bytes += len(body)
        try:
            async with self._parsing:
                return await asyncio.to_thread(read)
        finally:
            self._held_bytes -= len(body)
