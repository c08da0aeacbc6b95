"""A fake broker with scripted answers, and functions that build the answers."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from kio.index import load_response_schema

from quota_metrics.config.entities import entity_of
from quota_metrics.kafka.admin import KafkaAdmin
from tests.kit.kio_entities import encode, entity_of_fields

METADATA, API_VERSIONS, DESCRIBE, ALTER = 3, 18, 48, 49
ALICE = entity_of({"user": "alice", "client-id": None})

Answer = Callable[[bytes], bytes | None]  # request frame -> response after its length; None: close


def spans(apis: Mapping[int, tuple[int, int]]) -> Answer:
    """ApiVersions by the first and the last version of each API."""
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in apis.items()]
    return in_any_version({"api_keys": keys})


def in_any_version(fields: Mapping[str, Any]) -> Answer:
    """A response with these fields, in the version that was asked for, under the correlation id and header that belong
    to the request."""

    def answer(frame: bytes) -> bytes | None:
        key, version = struct.unpack_from(">hh", frame)
        entity = entity_of_fields(load_response_schema(key, version), fields)
        tags = b"\x00" if entity.__header_schema__.__version__ == 1 else b""
        return frame[4:8] + tags + encode(entity)

    return answer


def nodes(*brokers: tuple[int, int], controller: int = 1, topics: Sequence[Mapping[str, Any]] = ()) -> Answer:
    return in_any_version(
        {
            "brokers": [{"node_id": node, "host": "127.0.0.1", "port": port, "rack": "r"} for node, port in brokers],
            "cluster_id": "c",
            "controller_id": controller,
            "topics": topics,
        }
    )


ENTITY = [{"entity_type": "client-id", "entity_name": None}, {"entity_type": "user", "entity_name": "alice"}]
QUOTAS = in_any_version({"entries": [{"entity": ENTITY, "values": [{"key": "producer_byte_rate", "value": 10.0}]}]})
GOOD = {API_VERSIONS: spans({METADATA: (0, 13), DESCRIBE: (0, 1), ALTER: (0, 1)}), DESCRIBE: QUOTAS}


class FakeBroker:
    """Answers each API from a table; requests of other APIs are never answered."""

    def __init__(self, answers: dict[int, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[int] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                frame = len(frame).to_bytes(4, "big") + frame
                self.asked.append(int.from_bytes(frame[4:6], "big"))
                if not self.reply(frame, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the loop ends
            return
        finally:
            writer.close()

    def reply(self, frame: bytes, writer: asyncio.StreamWriter) -> bool:
        answer = self.answers.get(self.asked[-1])
        if answer is not None:
            content = answer(frame[4:])
            if content is None:
                return False
            writer.write(len(content).to_bytes(4, "big") + content)
        return True


@asynccontextmanager
async def broker(answers: dict[int, Answer]) -> AsyncIterator[FakeBroker]:
    fake = FakeBroker(answers)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server:
        fake.port = server.sockets[0].getsockname()[1]
        fake.answers.setdefault(METADATA, nodes((1, fake.port)))
        yield fake


def asking(answers: dict[int, Answer], ask: Callable[[KafkaAdmin, FakeBroker], Awaitable[Any]], **options: Any) -> Any:
    """What `ask` returns or raises at a client of a fake broker; the client is closed then."""

    async def run() -> Any:
        async with (
            broker(answers) as fake,
            aclosing(KafkaAdmin([("127.0.0.1", fake.port)], **{"timeout_ms": 2000} | options)) as admin,
        ):
            return await ask(admin, fake)

    return asyncio.run(run())
