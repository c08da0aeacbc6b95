"""Reads the record bytes of each topic off a Produce request or a Fetch response while it is forwarded. Sans-I/O.

The frame arrives in pieces of any size. Nothing of a piece is kept, except a topic's name that has arrived in part.
Work and memory are bounded: reading stops after _MAX_ELEMENTS topics, partitions, aborted transactions and tagged
fields. A frame that Kafka's schema does not describe yields nothing. Neither is an error to anybody.

A topic is named by its name. From version 13 on, Produce and Fetch carry its id instead: the topic is then ID_MARK and
the id in hexadecimal digits. No topic name contains ID_MARK.

Source: ProduceRequest.json and FetchResponse.json of Apache Kafka 4.3 and their predecessors; Topic.validate.
"""

import re
from collections.abc import Generator, Mapping
from typing import Final, TypeAlias

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.wire.apis import APIS, FETCH, PRODUCE

ID_MARK: Final = "#"

_MAX_ELEMENTS: Final = 10_000
_LEGAL_NAME: Final = re.compile(rb"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
_MAX_NAME_BYTES: Final = 249
_ID_BYTES: Final = 16
_ID_FROM: Final = 13  # in both APIs
_VARINT_BITS: Final = 28  # before the last of five bytes
_NOTHING: Final[Mapping[str, int]] = {}

# Bytes of fields that are not read.
_LENGTH_AND_CORRELATION: Final = 4 + 4
_LENGTH_AND_REQUEST_HEAD: Final = 4 + 2 + 2 + 4  # api_key, api_version, correlation_id; then the client id
_ACKS_AND_TIMEOUT: Final = 2 + 4
_INDEX: Final = 4
_TRANSACTION: Final = 8 + 8

_Step: TypeAlias = Generator[None, None, None]
_Number: TypeAlias = Generator[None, None, int]


class TopicBytes:
    """Reads one frame. `feed` its bytes, with the length field, in order; then ask `topics`."""

    def __init__(self, api_key: int, version: int) -> None:
        """`api_key`: PRODUCE for a request, FETCH for a response."""
        self._data, self._at = b"", 0
        self._skipped = 0  # bytes before the next value
        self._elements = 0
        self._version = version
        self._flexible = APIS[api_key].flexible(version)
        self._record_bytes: dict[str, int] = {}
        self._is_whole = False  # the schema has ended where the bytes have
        self._steps: _Step | None = {PRODUCE: self._produce, FETCH: self._fetch}[api_key]()

    def feed(self, data: bytes) -> None:
        self._data, self._at = data, 0
        if self._steps is None:
            self._is_whole = self._is_whole and not data
            return
        try:
            next(self._steps)
        except StopIteration:
            self._steps, self._is_whole = None, self._at == len(data)
        except ProtocolError:
            self._steps = None
        self._data = b""

    @property
    def topics(self) -> Mapping[str, int]:
        """Record bytes by topic, those without records left out. Empty unless exactly the whole frame was fed."""
        return self._record_bytes if self._is_whole else _NOTHING

    def _produce(self) -> _Step:
        self._skip(_LENGTH_AND_REQUEST_HEAD)
        self._skip((yield from self._int(2)))  # the client id, which is never compact
        yield from self._skip_tagged()
        if self._version >= 3:
            self._skip((yield from self._length(2)))  # transactional_id
        self._skip(_ACKS_AND_TIMEOUT)
        yield from self._topics(0)

    def _fetch(self) -> _Step:
        version = self._version
        self._skip(_LENGTH_AND_CORRELATION)
        yield from self._skip_tagged()
        self._skip((4 if version >= 1 else 0) + (2 + 4 if version >= 7 else 0))  # throttle time, session
        yield from self._topics(2 + 8 + (8 if version >= 4 else 0) + (8 if version >= 5 else 0))

    def _topics(self, partition_head: int) -> _Step:
        """`partition_head`: bytes of a partition between its index and its aborted transactions or records."""
        for _ in range((yield from self._count())):
            if self._version >= _ID_FROM:
                name = ID_MARK + (yield from self._take(_ID_BYTES)).hex()
            else:
                length = yield from self._length(2)
                if not 0 < length <= _MAX_NAME_BYTES:
                    raise ProtocolError("no topic has a name of this length")
                encoded = yield from self._take(length)
                if _LEGAL_NAME.fullmatch(encoded) is None:  # Kafka accepts no topic of this name
                    raise ProtocolError("no topic has such a name")
                name = encoded.decode("ascii")
            nbytes = 0
            for _ in range((yield from self._count())):
                self._skip(_INDEX + partition_head)
                if partition_head and self._version >= 4:
                    for _ in range((yield from self._count())):  # aborted transactions
                        self._skip(_TRANSACTION)
                        yield from self._skip_tagged()
                    if self._version >= 11:
                        self._skip(4)  # preferred_read_replica
                records = yield from self._length(4)
                self._skip(records)
                yield from self._skip_tagged()
                nbytes += max(records, 0)
            yield from self._skip_tagged()
            if nbytes:
                self._record_bytes[name] = self._record_bytes.get(name, 0) + nbytes
        yield from self._skip_tagged()
        yield from self._pass_skipped(0)

    def _skip_tagged(self) -> _Step:
        if not self._flexible:
            return
        for _ in range(self._within_bounds((yield from self._uvarint()))):
            yield from self._uvarint()
            self._skip((yield from self._uvarint()))

    def _count(self) -> _Number:
        """The length of an array; 0 for a null one."""
        return self._within_bounds(max((yield from self._length(4)), 0))

    def _within_bounds(self, count: int) -> int:
        self._elements += count
        if self._elements > _MAX_ELEMENTS:
            raise ProtocolError(f"cannot read more than {_MAX_ELEMENTS} elements of a frame")
        return count

    def _length(self, size: int) -> _Number:
        """The length of a string, bytes or an array; -1 for null. Not compact, it has `size` bytes."""
        return (yield from self._uvarint()) - 1 if self._flexible else (yield from self._int(size))

    def _int(self, size: int) -> _Number:
        return int.from_bytes((yield from self._take(size)), "big", signed=True)

    def _uvarint(self) -> _Number:
        value = shift = 0
        while True:
            if self._skipped or self._at >= len(self._data):
                yield from self._pass_skipped(1)
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > _VARINT_BITS:
                raise ProtocolError("cannot read a varint of more than 32 bits")

    def _take(self, size: int) -> Generator[None, None, bytes]:
        """The next `size` bytes, at most _MAX_NAME_BYTES."""
        if self._skipped:
            yield from self._pass_skipped(0)
        taken = b""
        while True:
            end = self._at + size - len(taken)
            taken += self._data[self._at : end]
            self._at = min(end, len(self._data))
            if len(taken) == size:
                return taken
            yield

    def _skip(self, size: int) -> None:
        self._skipped += max(size, 0)

    def _pass_skipped(self, wanted: int) -> _Step:
        """Passes the skipped bytes, and waits until `wanted` bytes (0 or 1) follow them."""
        while self._skipped + wanted > len(self._data) - self._at:
            self._skipped -= len(self._data) - self._at
            self._at = len(self._data)
            yield
        self._at += self._skipped
        self._skipped = 0
