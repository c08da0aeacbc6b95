"""The requests of one connection whose responses have not been sent, in order. Sans-I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from mypy_extensions import mypyc_attr

from exporters.model import ExchangeValues
from telemetry.gateway.push_fast_path import KnownHeads
from telemetry.receiver.receiver import Answer
from telemetry.wire.apis import Api
from telemetry.wire.errors import ProtocolError
from telemetry.wire.headers import encode_response

# (version, body of the request) -> body of the response. Raises ProtocolError.
LocalAnswer = Callable[[int, bytes], bytes]
# Called with each exchange between client and broker: quota_metrics.measure.usage_meter.UsageMeter.exchange.
Observe = Callable[[ExchangeValues], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection. `known_heads` is shared by all connections with this object."""

    max_request_bytes: int = 104_857_600  # Kafka's socket.request.max.bytes
    max_response_bytes: int = 2**31 - 1
    max_held_request_bytes: int = (
        2_097_152  # fits a push of telemetry.max.bytes; longer ones are refused by their header
    )
    max_in_flight: int = 10_000
    known_heads: KnownHeads = dataclasses.field(default_factory=KnownHeads)


@mypyc_attr(acyclic=True)  # not known to the garbage collector
class PendingRequest:
    """A request without a sent response. `request_bytes` excludes the length field, as the broker counts it."""

    answer: Answer | None = None  # the local answer; None: the broker answers
    flushed: bool = True  # False: the answer waits for the spool
    keep_alive: bool = False  # sent by the gateway itself, its response is dropped
    response_bytes: int = 0
    throttle_ms: int = 0

    def __init__(self, api: Api, version: int, correlation_id: int, client_id: str | None, request_bytes: int) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.request_bytes = request_bytes
        self.next: PendingRequest | None = None  # in PendingRequests


class PendingRequests:
    """The queue of one connection: responses are sent in the order of the requests."""

    __slots__ = ("_last", "_max_requests", "first", "size")

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.first: PendingRequest | None = None
        self._last: PendingRequest | None = None
        self.size = 0

    def append(self, pending: PendingRequest) -> None:
        """Raises ProtocolError when too many requests are in flight."""
        if self.size >= self._max_requests:
            raise ProtocolError(f"cannot accept more than {self._max_requests} requests in flight")
        if self._last is None:
            self.first = pending
        else:
            self._last.next = pending
        self._last = pending
        self.size += 1

    def remove_first(self) -> None:
        """There must be one."""
        assert self.first is not None
        self.first = self.first.next
        if self.first is None:
            self._last = None
        self.size -= 1

    def flushed(self, ok: bool) -> bytes:
        """The responses that may be sent after a flush. If it failed (`ok` False), waiting answers become refusals."""
        pending = self.first
        while pending is not None:
            if not (ok or pending.flushed or pending.answer is None):
                pending.answer = pending.answer.refused()
            pending.flushed = True
            pending = pending.next
        return self.take_ready()

    def take_ready(self) -> bytes:
        """The local answers at the head of the queue that wait for nothing."""
        pending = self.first
        if pending is None or pending.answer is None:
            return b""
        out: list[bytes] = []
        while pending is not None:
            answer = pending.answer
            if answer is None or not pending.flushed:
                break
            self.remove_first()
            out.append(encode_response(pending.api, pending.version, pending.correlation_id, answer.body))
            pending = self.first
        return out[0] if len(out) == 1 else b"".join(out)
