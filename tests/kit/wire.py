"""Requests and responses of a telemetry client as bytes on a blocking socket."""

import socket
import struct
from typing import NamedTuple

from quota_metrics.kafka.primitives import write_uvarint
from telemetry.wire.apis import APIS

GET, PUSH = 71, 72
ANSWER_BYTES = 16  # to a push: length, correlation id, no tagged fields, throttle time, error code, no tagged fields
NEW_ID = bytes(16)


class Subscription(NamedTuple):
    """A response to GetTelemetrySubscriptions."""

    error_code: int
    client_instance_id: bytes
    subscription_id: int
    interval_ms: int


def read_subscription(body: bytes) -> Subscription:
    """`body`: without the header."""
    _, error_code, instance_id, subscription_id = struct.unpack_from(">ih16si", body)
    codecs = body[26] - 1
    return Subscription(error_code, instance_id, subscription_id, struct.unpack_from(">i", body, 27 + codecs)[0])


def request(api_key: int, body: bytes, client_id: bytes = b"bench", version: int = 0, correlation_id: int = 1) -> bytes:
    """A request frame; of an API that is not known with a flexible header."""
    is_flexible = api_key not in APIS or APIS[api_key].flexible(version)
    frame = struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id + b"\0" * is_flexible
    return struct.pack(">i", len(frame) + len(body)) + frame + body


def push(instance_id: bytes, subscription_id: int, compression_type: int, payload: bytes) -> bytes:
    """PushTelemetry."""
    return request(PUSH, push_body(instance_id, subscription_id, compression_type, payload))


def push_body(instance_id: bytes, subscription_id: int, compression_type: int, payload: bytes) -> bytes:
    """Of a push that is not terminating."""
    head = struct.pack(">16siBb", instance_id, subscription_id, 0, compression_type)
    return head + compact(payload) + b"\0"


def subscribed(answer: bytes) -> tuple[bytes, int]:
    """The instance id and the subscription id of a GetTelemetrySubscriptions response."""
    code, instance_id, subscription_id, _ = read_subscription(answer[9:])
    assert code == 0, f"GetTelemetrySubscriptions was answered with {code}"
    return instance_id, subscription_id


def error_code(answer: bytes) -> int:
    """The error code of a PushTelemetry response."""
    assert len(answer) == ANSWER_BYTES
    return int.from_bytes(answer[13:15], "big", signed=True)


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """Connects to a local port from a local address."""
    client = socket.create_connection(("127.0.0.1", port), 30, (source, 0))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def pushing_client(port: int, compression_type: int, payload: bytes) -> tuple[socket.socket, bytes]:
    """A subscribed connection, and its push."""
    client = connect(port)
    client.sendall(request(GET, NEW_ID + b"\0"))
    return client, push(*subscribed(read_frame(client)), compression_type, payload)


def read_frame(client: socket.socket) -> bytes:
    """A complete response including its length. Raises EOFError when the peer closes the connection."""
    answer = b""
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        piece = client.recv(65_536)
        if not piece:
            raise EOFError("the other side closed the connection")
        answer += piece
    return answer


def compact(value: bytes) -> bytes:
    out = bytearray()
    write_compact_bytes(out, value)
    return bytes(out)


def write_compact_bytes(out: bytearray, value: bytes) -> None:
    """Also of a compact string."""
    write_uvarint(out, len(value) + 1)
    out += value
