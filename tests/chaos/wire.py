"""A hand-written telemetry client: ApiVersions, 71 and 72 over a socket, so that tests know what was acknowledged
when."""

import asyncio
import struct
from typing import Self

from tests.kit.wire import GET, NEW_ID, PUSH, Subscription, compact, push_body, read_subscription, request

PRODUCE, API_VERSIONS = 0, 18
TIMEOUT_S = 60.0  # longer than any restart takes, so that clients do not give up early

_HEAD_BYTES = 11  # of a request, without its client id


class WireClient:
    """One connection. Every method raises OSError, EOFError or TimeoutError when the connection fails."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id.encode()
        self.correlation = 0  # of the last request
        self.port = int(writer.get_extra_info("sockname")[1])  # ours

    @classmethod
    async def connect(cls, host: str, port: int, client_id: str, source: str = "127.0.0.1") -> Self:
        """Connects from a local address and sends ApiVersions, as Kafka clients do."""
        async with asyncio.timeout(TIMEOUT_S):
            client = cls(*await asyncio.open_connection(host, port, local_addr=(source, 0)), client_id)
        await client._ask(API_VERSIONS, 3, compact(b"chaos") + compact(b"1.0") + b"\0")
        return client

    async def subscription(self, client_instance_id: bytes = NEW_ID) -> Subscription:
        return read_subscription((await self._ask(GET, 0, client_instance_id + b"\0"))[1:])

    async def push(self, to: Subscription, compression_type: int, payload: bytes) -> int:
        """The error code; 0 is the acknowledgement."""
        body = push_body(to.client_instance_id, to.subscription_id, compression_type, payload)
        return int(struct.unpack_from(">h", await self._ask(PUSH, 0, body), 5)[0])

    async def produce(self, client_id: str = "") -> int:
        """Produces nothing to no topic, which brokers meter like any request; returns its size in bytes as they do.

        `client_id` takes the place of the connection's, as clients that share a connection would have it.
        """
        own, self._client_id = self._client_id, client_id.encode() or self._client_id
        try:
            body = b"\0" + struct.pack(">hi", 1, 30_000) + b"\1\0"
            await self._ask(PRODUCE, 9, body)
            return _HEAD_BYTES + len(self._client_id) + len(body)
        finally:
            self._client_id = own

    def close(self) -> None:
        self._writer.close()

    async def _ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """The response without its correlation id."""
        self.correlation += 1
        async with asyncio.timeout(TIMEOUT_S):
            self._writer.write(request(api_key, body, self._client_id, version, self.correlation))
            await self._writer.drain()
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = await self._reader.readexactly(size)
        assert struct.unpack_from(">i", answer)[0] == self.correlation
        return answer[4:]
