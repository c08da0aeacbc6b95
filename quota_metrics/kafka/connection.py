"""One connection to one broker: sends kio's requests and returns kio's responses, one at a time."""

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Self

from kio.schema.api_versions import v0 as api_versions_v0
from kio.schema.api_versions import v3 as api_versions_v3
from kio.static.protocol import RequestPayload

from exporters.listening_socket import at_an_address
from quota_metrics.kafka.authentication import Security, authenticate
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, UnsupportedError, check, transport_error
from quota_metrics.kafka.frames import NegotiatedRequest, ReadBody, api_name, decoded, encoded, interrupted
from quota_metrics.kafka.primitives import ProtocolError

UNSUPPORTED_VERSION = 35
_DECODED_IN_A_THREAD_BYTES = 64 * 1024  # from this size on, decoding would block the loop for milliseconds
_PACED_FROM_BYTES = 4 * 1024
_SOFTWARE_NAME = "headroom"  # also the distribution's name
_TLS_SHUTDOWN_S = 1.0
_OTHER_PROTOCOLS = {b"HT": "HTTP", b"\x15\x03": "a TLS alert, so it wants TLS", b"SS": "SSH"}  # by first bytes


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Options of all connections of a client. `timeout_ms` is per request."""

    timeout_ms: int
    max_response_bytes: int
    security: Security = field(default_factory=Security)
    client_id: str = "headroom"


class KafkaConnection:
    """A connection with negotiated API versions, authenticated if configured.

    It closes after any error, because the state of a request in flight is then unknown. All methods raise
    ClusterError; each message names the broker.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str, options: ConnectionOptions
    ) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._options = options
        self._turn = asyncio.Lock()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._ends_at = math.inf  # loop time: brokers with connections.max.reauth.ms close the connection after it

    @classmethod
    async def open(cls, host: str, port: int, options: ConnectionOptions) -> Self:
        """Connects, negotiates TLS and versions, and authenticates, all within the timeout."""
        peer = f"{host}:{port}"
        timeout_s, tls = options.timeout_ms / 1000, options.security.tls
        secured: dict[str, Any] = {"ssl": tls, "server_hostname": host, "ssl_shutdown_timeout": _TLS_SHUTDOWN_S}
        try:
            async with asyncio.timeout(timeout_s):
                connect = partial(asyncio.open_connection, port=port, **(secured if tls else {}))
                reader, writer = await at_an_address(host, timeout_s, connect)
                connection = cls(reader, writer, peer, options)
                try:
                    await connection._agree_on_versions()
                    # Brokers answer ApiVersions before SASL (KIP-43, KIP-152).
                    if (mechanism := options.security.sasl) is not None:
                        lifetime_s = await authenticate(mechanism, connection.send, peer)
                        connection._ends_at = asyncio.get_running_loop().time() + lifetime_s
                except BaseException:
                    writer.close()
                    raise
                return connection
        except TimeoutError as exc:
            raise ClusterError(f"cannot reach {peer}: no answer within {options.timeout_ms} ms") from exc
        except (OSError, ValueError) as exc:  # ValueError: a host name that IDNA cannot encode, or with a null byte
            raise transport_error(peer, exc, f"cannot reach {peer}") from exc

    @property
    def is_open(self) -> bool:
        over = asyncio.get_running_loop().time() >= self._ends_at
        return not (over or self._writer.is_closing() or self._reader.at_eof())

    async def send(self, request: NegotiatedRequest, *, read: ReadBody | None = None, is_paced: bool = False) -> Any:
        """Sends the request in a version that the broker supports; UnsupportedError if there is none.

        `read` decodes the response instead of kio's entities. `is_paced`: without holding up the loop's other work.
        """
        low, high = self._versions.get(request.key, (0, -1))
        number = next((number for number in request.versions if low <= number <= high), None)
        if number is None:
            oldest, newest = min(request.versions), max(request.versions)
            has = f", only {low} to {high}" if high >= low else ""
            raise UnsupportedError(
                f"{self.peer} does not know {request.name} in a version from {oldest} to {newest}{has}"
            )
        payload = request.in_version(number)
        return await self._decoded(payload, await self._frame(payload), read, is_paced)

    async def close(self) -> None:
        """Closes after the request in flight."""
        async with self._turn:
            self._writer.close()
        with suppress(OSError):  # already broken
            await self._writer.wait_closed()

    async def _agree_on_versions(self) -> None:
        request = api_versions_v3.ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=version(_SOFTWARE_NAME)
        )
        frame = await self._frame(request)
        response: Any
        if frame[4:6] == UNSUPPORTED_VERSION.to_bytes(2, "big"):  # an old broker, which answers in version 0 (KIP-511)
            oldest = api_versions_v0.ApiVersionsRequest()
            response = await self._decoded(oldest, await self._frame(oldest))
        else:
            response = await self._decoded(request, frame)
        check(f"ApiVersions at {self.peer}", response.error_code)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    async def _frame(self, request: RequestPayload) -> bytes:
        """The response's bytes, correlation id first."""
        async with self._turn:
            if not self.is_open:
                raise BrokerUnreachableError(f"the connection to {self.peer} is closed")
            self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
            try:
                sent = encoded(request, self._correlation_id, self._options.client_id)
            except ProtocolError as exc:
                raise UnsupportedError(str(exc)) from exc
            asked, answered = api_name(request), False
            try:
                async with asyncio.timeout(self._options.timeout_ms / 1000):
                    frame = await self._send_and_receive(sent)
                answered = True
                return frame
            except TimeoutError as exc:
                raise ClusterError(f"{self.peer} did not answer {asked} within {self._options.timeout_ms} ms") from exc
            except asyncio.IncompleteReadError as exc:
                # A broker closes the connection if the client does not use the TLS or SASL that it requires.
                hint = " (does it require TLS or SASL?)" if self._options.security.sasl is None else ""
                message = f"{self.peer} closed the connection instead of answering {asked}{hint}"
                raise BrokerUnreachableError(message) from exc
            except OSError as exc:
                raise transport_error(self.peer, exc, f"the connection to {self.peer} broke") from exc
            finally:
                if not answered:  # even when cancelled: a late response would be taken for the next one
                    self._writer.close()

    async def _send_and_receive(self, sent: bytes) -> bytes:
        self._writer.write(len(sent).to_bytes(4, "big") + sent)
        await self._writer.drain()
        head = await self._reader.readexactly(4)
        length = int.from_bytes(head, "big", signed=True)
        if not 4 <= length <= self._options.max_response_bytes:
            spoken = _OTHER_PROTOCOLS.get(head[:2], f"a frame of {length} bytes")
            raise ClusterError(f"{self.peer} is not a Kafka broker, or not on this port: it answered with {spoken}")
        frame = await self._reader.readexactly(length)
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != self._correlation_id:
            raise ClusterError(f"{self.peer} answered {correlation_id} when {self._correlation_id} was asked")
        return frame

    async def _decoded(
        self, request: RequestPayload, frame: bytes, read: ReadBody | None = None, is_paced: bool = False
    ) -> Any:
        try:
            if is_paced and len(frame) >= _PACED_FROM_BYTES:
                return await asyncio.to_thread(_decoded_with_rests, request, frame, read)
            if len(frame) < _DECODED_IN_A_THREAD_BYTES:
                return decoded(request, frame, read)
            return await asyncio.to_thread(decoded, request, frame, read)
        except ProtocolError as exc:
            self._writer.close()
            raise ClusterError(f"{self.peer} answered {api_name(request)} with what cannot be read: {exc}") from exc


class Rests:
    """A thread that decodes beside more urgent work rests: it lets go of the interpreter after a tenth of a millisecond
    each, and for so long that few frames meet it."""

    _SLICE_S = 0.0001
    _REST_S = 0.004

    def __init__(self) -> None:
        self._due_s = time.perf_counter() + self._SLICE_S

    def __call__(self) -> None:
        if time.perf_counter() >= self._due_s:
            time.sleep(self._REST_S)
            self._due_s = time.perf_counter() + self._SLICE_S


def _decoded_with_rests(request: RequestPayload, frame: bytes, read: ReadBody | None) -> Any:
    with interrupted(Rests()):
        return decoded(request, frame, read)
