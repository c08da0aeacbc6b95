"""One request and its response: what is remembered of it, and how its head is read. Sans-I/O."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable
from typing import Protocol

from telemetry.receiver.receiver import Answer
from telemetry.wire.apis import API_VERSIONS, Api
from telemetry.wire.errors import ProtocolError
from telemetry.wire.primitives import Reader

# A request's version and what stands behind its header -> the response behind its own. Raises ProtocolError.
LocalAnswer = Callable[[int, bytes], bytes]

REQUEST_HEAD = struct.Struct(">hhih")  # api_key, api_version, correlation_id, length of client_id
RESPONSE_HEAD = struct.Struct(">ii")  # length, correlation_id

_SOFTWARE = re.compile(  # ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN
    r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection."""

    max_request_bytes: int = 104_857_600  # Kafka's socket.request.max.bytes
    max_response_bytes: int = 2**31 - 1
    max_held_request_bytes: int = 2_097_152  # a push of telemetry.max.bytes fits; longer ones are judged by their head
    max_in_flight: int = 10_000


@dataclasses.dataclass(slots=True)
class Exchange:
    """A request whose response has not left yet."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    request_bytes: int  # without the length field, as the broker counts it
    response_bytes: int = 0
    throttle_ms: int = 0
    answer: Answer | None = None  # ours; None: the broker's turn
    flushed: bool = True


class Observe(Protocol):
    """Told of each exchange of a client with a broker: quota_metrics.measure.meter.UsageMeter.exchange."""

    def __call__(
        self,
        *,
        principal: str,
        client_id: str,
        address: str,
        broker_id: int,
        api_key: int,
        request_bytes: int,
        response_bytes: int,
        throttle_ms: int,
        now_ms: int,
    ) -> None: ...


def response(exchange: Exchange) -> bytes:
    answer = exchange.answer
    assert answer is not None
    # Flexible versions have response header 1 (an empty set of tagged fields), but ApiVersions: old clients read it.
    tags = b"\x00" if exchange.api.flexible(exchange.version) and exchange.api.key != API_VERSIONS else b""
    length = 4 + len(tags) + len(answer.body)
    return RESPONSE_HEAD.pack(length, exchange.correlation_id) + tags + answer.body


def request_body(request: bytes, *, flexible: bool = True) -> bytes:
    """A request behind its header: version 2 when it is flexible, else 1."""
    reader = Reader(request, 8)
    reader.nullable_string()  # client_id: never compact, also in request header 2
    if flexible:
        reader.skip_tagged()
    return request[reader.offset :]


def software_of(body: bytes) -> tuple[str, str]:
    """The name and version of the software in an ApiVersions request (3+), empty ones when they are not valid."""
    reader = Reader(body)
    name, version = reader.compact_string(), reader.compact_string()
    return (name, version) if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version) else ("", "")


def acks_of(data: bytes, body: int, end: int, version: int) -> int:
    """acks of a Produce request whose header reaches to `body`. Raises ProtocolError when it has not come yet."""
    reader = Reader(data, min(body, len(data)))
    if version >= 9:
        reader.skip_tagged()
        reader.skip(max(reader.uvarint() - 1, 0))  # transactional_id
    elif version >= 3:
        reader.skip(max(reader.int16(), 0))
    acks = reader.int16()
    if reader.offset > end:
        raise ProtocolError("cannot read the head of a Produce request: it ends too early")
    return acks
