"""Follows a mirror of the spool (exporters.spool.mirror) and sends its pushes to an OTLP endpoint.

A request is retried until the receiver accepts it or refuses it for its content, or until its segment is dropped
because the backlog exceeds its limit. A request that is refused for its content is split in halves and sent again, so
that one bad push does not cause others to be dropped; a push is split by temporality, because Prometheus refuses a
request for one delta. A request refused for its size is split down to single data points. The position is saved after
each accepted request; a crash before that sends the request twice, which OTLP cannot rule out.

A refusal is about the content if the receiver accepts anything else: other pushes of the batch, or an empty request,
which OTLP's servers accept. A receiver that refuses everything has a wrong token, a wrong path or a proxy before it:
then nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import stamina
import structlog
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from exporters.model import RecordKind
from exporters.otlp.outcome import (
    EndpointSendError,
    OtlpSender,
    PermanentSendError,
    RetryableSendError,
    SendError,
    TooLargeSendError,
    receiver_text,
)
from exporters.spool.mirror import MirrorReader
from exporters.spool.reader import Batch
from exporters.spool.records import decode_push
from telemetry.decode.bounds import points_in
from telemetry.forward.resources import by_temporality, divided, resource_metrics_of
from telemetry.forward.selection import ForwardSelection

log = structlog.get_logger(__name__)

_MAX_RECORDS = 512
_MAX_BYTES = 512 << 10  # read from the spool at once
_MAX_REQUEST_BYTES = 2 << 20  # gRPC receivers accept 4 MiB by default; a single resource may exceed this
_WAIT_MAX_S = 5.0
_ASKED_MIN_S = 0.1  # a shorter delay that a receiver asks for would be a busy loop: the back-off
_MAX_SUSPECTS = 4  # resources that are refused before an empty request says whether the endpoint accepts anything


class LostPush(StrEnum):
    """Why a push was not forwarded. Closed set: a metric label."""

    LAG = "lag"  # the backlog exceeded forward.max_lag_bytes
    UNREADABLE = "unreadable"  # damaged record, or a payload that cannot be decoded


class LostPoint(StrEnum):
    """Why a data point that was sent was not accepted. Closed set: a metric label."""

    REFUSED = "refused"  # the receiver refused the push, and accepts others
    REJECTED = "rejected"  # partial success


class Stopped(Exception):  # noqa: N818 - a condition, as queue.Full
    """The process stops; requests not yet accepted are sent after the next start."""


@dataclass(slots=True)
class ForwardCounts:
    """Counts since the spool was created, stored with the position."""

    points: int = 0
    pushes: int = 0
    lost_pushes: Counter[LostPush] = field(default_factory=Counter)
    lost_points: Counter[LostPoint] = field(default_factory=Counter)

    def as_note(self) -> dict[str, Any]:
        return {
            "points": self.points,
            "pushes": self.pushes,
            "lost_pushes": {reason.value: self.lost_pushes[reason] for reason in LostPush},
            "lost_points": {reason.value: self.lost_points[reason] for reason in LostPoint},
        }

    @classmethod
    def of_note(cls, note: dict[str, Any]) -> ForwardCounts:
        """Parses the output of `as_note`; missing counts are 0."""
        lost_pushes, lost_points = note.get("lost_pushes", {}), note.get("lost_points", {})
        return cls(
            note.get("points", 0),
            note.get("pushes", 0),
            Counter({reason: lost_pushes.get(reason.value, 0) for reason in LostPush}),
            Counter({reason: lost_points.get(reason.value, 0) for reason in LostPoint}),
        )


class Forwarder:
    """Synchronous; for use by one thread."""

    def __init__(
        self,
        reader: MirrorReader,
        sender: OtlpSender,
        selection: ForwardSelection,
        *,
        max_decompressed_bytes: int,
        max_lag_bytes: int,
        is_stopping: Callable[[], bool],
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_failure` is called after each failed attempt, before the back-off."""
        self._reader = reader
        self._sender = sender
        self._selection = selection
        self._max_decompressed_bytes = max_decompressed_bytes
        self._max_lag_bytes = max_lag_bytes
        self._is_stopping = is_stopping
        self._on_failure = on_failure
        self.counts = ForwardCounts.of_note(reader.note)
        self.fault: str | None = None  # why the last attempt failed; None after a success
        self.failures = 0
        self._messages = 0  # of accepted requests

    def step(self) -> int:
        """Forwards the next records and returns how many there were. Raises Stopped, OSError."""
        self._keep_lag_bound()
        batch = self._reader.next_batch(_MAX_RECORDS, _MAX_BYTES)
        if batch is None:
            return 0
        waiting: list[Any] = []  # ResourceMetrics
        taken = pushes = nbytes = 0
        for kind, body in batch.records:
            taken += 1
            if kind is RecordKind.PUSH and (resources := self._resources(body)):
                waiting += resources
                pushes += 1
                nbytes += sum(resource.ByteSize() for resource in resources)
                if nbytes >= _MAX_REQUEST_BYTES:
                    break
        batch = batch.first(taken)
        if self._send_all(waiting, batch):
            self.counts.pushes += pushes
            self.counts.lost_pushes[LostPush.UNREADABLE] += batch.corrupt
            self._reader.commit(batch, self.counts.as_note())
        return taken

    def _resources(self, record: bytes) -> list[Any]:
        try:
            push = decode_push(record)
            if not self._selection.takes_push(push):
                return []
            return resource_metrics_of(push, self._selection, max_decompressed_bytes=self._max_decompressed_bytes)
        except (ValueError, TypeError) as exc:  # the ingester logs and quarantines it
            log.debug("cannot forward a push", nbytes=len(record), cause=repr(exc))
            self.counts.lost_pushes[LostPush.UNREADABLE] += 1
            return []

    def _send_all(self, resources: list[Any], batch: Batch) -> bool:
        """False when the segment was dropped before every push was accepted or refused. Raises Stopped, OSError."""
        waiting = [resources] if resources else []
        suspects: list[list[Any]] = []  # of one resource each, refused while nothing was accepted
        accepts = False
        while waiting or suspects:
            is_last = not waiting or len(suspects) >= _MAX_SUSPECTS
            some = suspects.pop() if is_last else waiting.pop()
            points = sum(map(points_in, some))
            try:
                partial = self._send_until_accepted(some, batch, is_last)
            except PermanentSendError as exc:
                self._failed(exc)
                if len(some) > 1:
                    waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
                elif isinstance(exc, TooLargeSendError) and points > 1:
                    waiting += [[half] for half in reversed(divided(some[0]))]
                elif accepts and len(parts := by_temporality(some[0])) > 1:
                    waiting += [[part] for part in parts]
                elif accepts:
                    lost = self.counts.lost_points[LostPoint.REFUSED]
                    self.counts.lost_points[LostPoint.REFUSED] = lost + points
                    if (lost + points).bit_length() > lost.bit_length():  # the 1st, 2nd, 4th, 8th ... point
                        total = lost + points
                        log.error("the OTLP endpoint refuses data points, it loses them", total=total, cause=str(exc))
                else:
                    suspects.append(some)
                accepts = accepts or is_last  # an empty request was accepted
            else:
                if partial is None:
                    return False
                accepts = True
                self._count_accepted(points, partial)
            if accepts:
                self.fault = None
                waiting += suspects  # once more: the endpoint may have begun to accept after them
                suspects.clear()
        return True

    def _count_accepted(self, points: int, partial: Any) -> None:
        """`partial`: an ExportMetricsPartialSuccess; with a message it may be a warning that rejects nothing."""
        rejected = min(max(partial.rejected_data_points, 0), points)
        self.counts.points += points - rejected
        self.counts.lost_points[LostPoint.REJECTED] += rejected
        if partial.error_message:
            self._messages += 1
            if self._messages.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...
                text = receiver_text(partial.error_message)
                log.warning("the OTLP endpoint accepts a request and says", total=self._messages, cause=text)

    def _send_until_accepted(self, resources: list[Any], batch: Batch, is_last: bool) -> Any | None:
        """Returns an ExportMetricsPartialSuccess; None if the segment was dropped before.

        `is_last`: whether a refusal counts only if an empty request is accepted. Raises PermanentSendError, Stopped.
        """
        request = ExportMetricsServiceRequest(resource_metrics=resources)

        def wait_s(exc: Exception) -> float | bool:
            if not isinstance(exc, RetryableSendError):
                return False
            self._failed(exc)
            self._keep_lag_bound()
            if self._is_stopping() or not self._reader.has(batch.segment):
                return False
            asked_s = exc.retry_after_s or 0.0
            return asked_s if asked_s >= _ASKED_MIN_S else True

        try:
            for attempt in stamina.retry_context(on=wait_s, attempts=None, timeout=None, wait_max=_WAIT_MAX_S):
                with attempt:
                    try:
                        return self._sender.send(request)
                    except (PermanentSendError, EndpointSendError) as exc:
                        if isinstance(exc, PermanentSendError) and not is_last:
                            raise
                        try:
                            self._sender.send(ExportMetricsServiceRequest())
                        except SendError:
                            raise RetryableSendError(str(exc)) from exc
                        raise PermanentSendError(str(exc)) from exc
        except RetryableSendError as exc:
            if self._is_stopping():
                raise Stopped from exc
            return None
        raise AssertionError("not reached: the last attempt returns or raises")

    def _failed(self, exc: Exception) -> None:
        self.fault = str(exc)
        self.failures += 1
        self._on_failure()

    def _keep_lag_bound(self) -> None:
        self.counts.lost_pushes[LostPush.LAG] += self._reader.drop_oldest(self._max_lag_bytes)
