"""Hides the brokers' addresses in Fetch responses, while they are forwarded. Sans-I/O.

From version 16 on a Fetch response may name new leaders of partitions, and their addresses at its end (KIP-951), after
megabytes of records. The length of the frame is sent before that, so addresses of the gateway cannot take their place.
Instead the tag of NodeEndpoints becomes one that no client knows, which clients skip (KIP-482). A client then connects
to the new leader at the address that Metadata gave it, the gateway's.

Source: FetchResponse.json of Apache Kafka 4.3, versions 16 to 18.
"""

from typing import Final

from quota_metrics.kafka.primitives import ProtocolError

NAMES_ENDPOINTS_FROM: Final = 16  # the first version of such responses

_UNKNOWN_TAG: Final = b"\x7f"
_NODE_ENDPOINTS_TAG: Final = 0
_VARINT_BITS: Final = 28  # the last of five bytes

# What the next varint is.
_TAGS: Final = 0  # number of tagged fields
_TAG: Final = 1
_TAG_BYTES: Final = 2
_TOPICS: Final = 3
_PARTITIONS: Final = 4
_ABORTED: Final = 5  # aborted transactions of a partition
_RECORDS: Final = 6
_NOTHING: Final = 7

# What tagged fields belong to.
_HEADER: Final = 0
_TRANSACTION: Final = 1
_PARTITION: Final = 2
_TOPIC: Final = 3
_RESPONSE: Final = 4

# Bytes of the fields before a varint.
_LENGTH_AND_CORRELATION: Final = 4 + 4
_BEFORE_TOPICS: Final = 4 + 2 + 4  # throttle_time_ms, error_code, session_id
_TOPIC_ID: Final = 16
_BEFORE_ABORTED: Final = 4 + 2 + 8 + 8 + 8  # partition_index, error_code, high_watermark, two more offsets
_TRANSACTION_BYTES: Final = 8 + 8
_PREFERRED_REPLICA: Final = 4
_REST: Final = 1 << 40


class FetchEndpoints:
    """A scanner of one connection's Fetch responses. It keeps numbers, and no bytes."""

    __slots__ = ("_aborted", "_expected", "_owner", "_partitions", "_shift", "_skipped", "_tags", "_topics", "_value")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The next byte is the first of a frame."""
        self._skipped = _LENGTH_AND_CORRELATION  # bytes until the next varint
        self._expected, self._owner = _TAGS, _HEADER
        self._value = self._shift = 0  # of a varint that has arrived in part
        self._topics = self._partitions = self._aborted = self._tags = 0  # that have not ended

    def hidden(self, data: bytes) -> bytes:
        """The next bytes of the frame, as they are sent to the client. Raises ProtocolError on an endless varint."""
        at, size = 0, len(data)
        while True:
            if self._skipped:
                taken = min(self._skipped, size - at)
                self._skipped -= taken
                at += taken
            if at >= size:
                return data
            byte = data[at]
            at += 1
            self._value |= (byte & 0x7F) << self._shift
            if byte >= 0x80:
                self._shift += 7
                if self._shift > _VARINT_BITS:
                    raise ProtocolError("cannot read a Fetch response: a varint has more than 32 bits")
                continue
            value, self._value, self._shift = self._value, 0, 0
            if self._expected == _TAG and self._owner == _RESPONSE and value == _NODE_ENDPOINTS_TAG:
                data = data[: at - 1] + _UNKNOWN_TAG + data[at:]
            self._read(value)

    def _read(self, value: int) -> None:
        expected = self._expected
        if expected == _TAGS:
            self._tags = value
            self._next_tag()
        elif expected == _TAG:
            self._expected = _TAG_BYTES
        elif expected == _TAG_BYTES:
            self._skipped = value
            self._tags -= 1
            self._next_tag()
        elif expected == _TOPICS:
            self._topics = max(value - 1, 0)
            self._next_topic()
        elif expected == _PARTITIONS:
            self._partitions = max(value - 1, 0)
            self._next_partition()
        elif expected == _ABORTED:
            self._aborted = max(value - 1, 0)
            self._next_transaction()
        else:
            self._skipped = max(value - 1, 0)
            self._expect_tags(_PARTITION)

    def _expect_tags(self, owner: int) -> None:
        self._expected, self._owner = _TAGS, owner

    def _next_tag(self) -> None:
        """Fields before the next varint follow the tagged fields' own bytes."""
        owner = self._owner
        if self._tags:
            self._expected = _TAG
        elif owner == _PARTITION:
            self._partitions -= 1
            self._next_partition()
        elif owner == _TRANSACTION:
            self._aborted -= 1
            self._next_transaction()
        elif owner == _TOPIC:
            self._topics -= 1
            self._next_topic()
        elif owner == _HEADER:
            self._expect(_TOPICS, _BEFORE_TOPICS)
        else:
            self._expect(_NOTHING, _REST)

    def _next_topic(self) -> None:
        if self._topics:
            self._expect(_PARTITIONS, _TOPIC_ID)
        else:
            self._expect_tags(_RESPONSE)

    def _next_partition(self) -> None:
        if self._partitions:
            self._expect(_ABORTED, _BEFORE_ABORTED)
        else:
            self._expect_tags(_TOPIC)

    def _next_transaction(self) -> None:
        if self._aborted:
            self._skipped += _TRANSACTION_BYTES
            self._expect_tags(_TRANSACTION)
        else:
            self._expect(_RECORDS, _PREFERRED_REPLICA)

    def _expect(self, varint: int, skipped: int) -> None:
        self._expected = varint
        self._skipped += skipped
