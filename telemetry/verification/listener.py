"""The sockets of a check: a cluster of one node with one topic, which answers telemetry and producers."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from kio.index import load_request_schema

from quota_metrics.kafka.frames import decode_head, response_body
from quota_metrics.kafka.primitives import ProtocolError, Reader
from telemetry.gateway.connection import API_VERSIONS_TOO_NEW
from telemetry.gateway.security.client_identity import software_of
from telemetry.gateway.standalone_broker import ALL_VERSIONS, SinkNode, api_versions, metadata
from telemetry.verification.client_check import TELEMETRY_MAX_BYTES, ClientCheck, Reply, Request
from telemetry.wire.apis import (
    API_VERSIONS,
    APIS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    PUSH_TELEMETRY,
    api_of,
)
from telemetry.wire.errors import ErrorCode
from telemetry.wire.frames import encode_response

_MAX_REQUEST_BYTES: Final = 2 * TELEMETRY_MAX_BYTES  # a push over the limit is read, so that its frame can be shown
_LEAST_REQUEST_BYTES: Final = 10
_MAX_CONNECTIONS: Final = 64
_CLUSTER_ID: Final = "verifyClientAAAAAAAAAA"
_TELEMETRY: Final = (GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY)
_TICK_S: Final = 0.05
# Java's clients send a terminating push only while another request of theirs is in flight. Once all else was tried,
# Metadata is answered late, so that a client that asks for it often has one.
_LATE_METADATA_S: Final = 1.0
# Some clients push only after they have produced or fetched. The records of one topic are acknowledged and forgotten.
_TOPIC: Final = "verify-client"
# The versions that producers are offered: later ones name topics by id.
PRODUCER_VERSIONS: Final[Mapping[int, tuple[int, int]]] = {PRODUCE: (3, 12), INIT_PRODUCER_ID: (0, 4)}
_PRODUCE_S: Final = 0.005  # a latency that clients see that measure whole milliseconds and report no zeros


class VerificationListener:
    """Serves one client's connections to a check. `now_ms`: a clock that never goes back."""

    def __init__(self, check: ClientCheck, now_ms: Callable[[], int]) -> None:
        self._check = check
        self._now_ms = now_ms
        self._numbers = itertools.count(1)
        self._open: set[asyncio.StreamWriter] = set()

    async def run(
        self, host: str, port: int, timeout_s: float, ready: Callable[[str], None], complete: Callable[[], None]
    ) -> None:
        """Returns when the check is over, or after `timeout_s`. Raises OSError when it cannot listen.

        `ready` is called with HOST:PORT, `complete` when the client may be closed.
        """
        server = await asyncio.start_server(self._serve, host, port, limit=1 << 16)
        try:
            bound, port = server.sockets[0].getsockname()[:2]
            ready(f"[{bound}]:{port}" if ":" in bound else f"{bound}:{port}")
            check, end_ms, is_announced = self._check, self._now_ms() + timeout_s * 1000, False
            while not check.over and self._now_ms() < end_ms:
                await asyncio.sleep(_TICK_S)
                check.tick(self._now_ms())
                if check.complete and not is_announced:
                    complete()
                    is_announced = True
        finally:
            server.close()
            for writer in tuple(self._open):
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_CONNECTIONS:
            writer.close()
            return
        number = next(self._numbers)
        self._open.add(writer)
        self._check.opened(number)
        try:
            await self._converse(number, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            self._check.closed(number, self._now_ms())
            writer.close()

    async def _converse(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("sockname")[:2]
        node = SinkNode(host, port, _CLUSTER_ID)
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            if not _LEAST_REQUEST_BYTES <= length <= _MAX_REQUEST_BYTES:
                self._check.unreadable(f"a frame has a length of {length} bytes", b"")
                return
            frame = await reader.readexactly(length)
            if frame[:2] == PRODUCE.to_bytes(2, "big"):
                await asyncio.sleep(_PRODUCE_S)
            if self._check.complete and frame[:2] == METADATA.to_bytes(2, "big"):
                await asyncio.sleep(_LATE_METADATA_S)
            try:
                reply = self._answer(frame, node, number)
            except ProtocolError as exc:
                if int.from_bytes(frame[:2], "big") in _TELEMETRY:
                    self._check.unreadable(str(exc), frame)
                return
            writer.write(reply.body)
            await writer.drain()
            if reply.hang_up:
                return

    def _answer(self, frame: bytes, node: SinkNode, connection: int) -> Reply:
        """The whole response, with its length field, to a request without it.

        Raises ProtocolError when the request cannot be read, or is of another API.
        """
        reader = Reader(frame)
        key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        api = api_of(key << 16 | version)
        reader.nullable_string()  # the client id
        if key == API_VERSIONS and version > APIS[API_VERSIONS].max_version:
            return Reply(encode_response(api, 0, correlation_id, API_VERSIONS_TOO_NEW))
        if api.flexible(version):
            reader.skip_tagged()
        body = frame[reader.offset :]
        least, newest = PRODUCER_VERSIONS.get(key, (0, -1))
        hang_up = False
        if key == API_VERSIONS:
            if version >= 3:
                self._check.software_name = software_of(body)[0]
            answer = api_versions({**ALL_VERSIONS, **PRODUCER_VERSIONS}, version)
        elif key == METADATA:
            answer = metadata(body, version, node, _TOPIC)
        elif least <= version <= newest:
            answer = answer_producer(key, version, body)
        elif key in _TELEMETRY:
            answer, hang_up = self._check.answer(Request(key, body, frame, connection, self._now_ms()))
        else:
            raise ProtocolError(f"cannot answer a request of API {key}")
        return Reply(encode_response(api, version, correlation_id, answer) if answer else b"", hang_up)


def answer_producer(key: int, version: int, body: bytes) -> bytes:
    """The body of a Produce or InitProducerId response; empty if none is wanted (acks 0). Raises ProtocolError."""
    request: Any = decode_head(load_request_schema(key, version), body)[0]
    fields: dict[str, Any]
    if key == INIT_PRODUCER_ID:
        fields = {"error_code": ErrorCode.NONE, "producer_id": 1, "producer_epoch": 0}
    elif not request.acks:
        return b""
    else:
        stored: dict[str, Any] = {"error_code": ErrorCode.NONE, "base_offset": 0, "log_append_time": None}
        stored["record_errors"] = []
        fields = {
            "responses": [
                {
                    "name": topic.name,
                    "partition_responses": [{"index": partition.index, **stored} for partition in topic.partition_data],
                }
                for topic in request.topic_data
            ]
        }
    return response_body(key, version, {"throttle_time": timedelta(), **fields})
