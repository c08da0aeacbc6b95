"""How many partitions a request creates, adds or deletes: CreateTopics, CreatePartitions and DeleteTopics. Sans-I/O.

The controller charges them to controller_mutation_rate (KIP-599): a topic that it creates or deletes costs its
partitions, one that it enlarges what is added, and one that it refuses costs nothing. Sizes that a message does not
tell are UNKNOWN. Requests and responses are read within bounds; what cannot be read is forwarded all the same.

Source: CreateTopics, CreatePartitions and DeleteTopics of Apache Kafka 4.3 (JSON definitions of the messages).
"""

from __future__ import annotations

from typing import Final

from exporters.model import Changes
from quota_metrics.kafka.primitives import ProtocolError, Reader
from telemetry.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, Api, flags_of

MUTATIONS: Final = frozenset({CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS})
MUTATING: Final = flags_of(MUTATIONS)  # by API key
_MOST_BYTES: Final = 2_097_152  # of a response that is read
UNKNOWN: Final = -1
UNREADABLE: Final[Changes] = (("", UNKNOWN, UNKNOWN, False),)
_MOST_ELEMENTS: Final = 100_000
_TOPIC_ID_BYTES: Final = 16


def requested_changes(api: Api, version: int, body: bytes) -> Changes:
    """What a request asks for; UNREADABLE when it cannot be read."""
    try:
        fields = _Fields(body, api.flexible(version))
        if api.key == DELETE_TOPICS and version < 6:
            return tuple((fields.text(), 0, UNKNOWN, False) for _ in range(fields.elements()))
        topics = [_read_topic(api.key, fields) for _ in range(fields.elements())]
        fields.reader.skip(4)  # timeout_ms
        has_flag = api.key == CREATE_PARTITIONS or (api.key == CREATE_TOPICS and version > 0)
        validate_only = has_flag and fields.reader.boolean()
        return tuple((*topic, validate_only) for topic in topics)
    except ProtocolError:
        return UNREADABLE


def accepted_changes(api: Api, version: int, body: bytes, requested: Changes) -> Changes:
    """The `requested` changes that the controller made, by its response.

    If the request was UNREADABLE, the response tells the topics. If the response cannot be read, all changes count.
    """
    if len(body) > _MOST_BYTES:
        return requested
    try:
        results = _read_results(api, version, body)
    except ProtocolError:
        return requested
    if requested == UNREADABLE:
        unread = UNKNOWN if api.key != DELETE_TOPICS else 0
        requested = tuple((topic, unread, UNKNOWN, False) for topic in results if not topic.startswith(_ID))
    return tuple(
        (name or topic, created if created > 0 else total, created if created > 0 else added, validate_only)
        for topic, total, added, validate_only in requested
        for error, name, created in [results.get(topic, (UNKNOWN, "", UNKNOWN))]
        if error == 0
    )


def _read_topic(key: int, fields: _Fields) -> tuple[str, int, int]:
    if key == DELETE_TOPICS:
        topic = fields.text() or fields.topic_id()
        if not topic.startswith(_ID):
            fields.reader.skip(_TOPIC_ID_BYTES)
        fields.tags()
        return topic, 0, UNKNOWN
    topic, total = fields.text(), fields.reader.int32()
    if key == CREATE_TOPICS:
        fields.reader.skip(2)  # replication_factor
    assigned = 0
    for _ in range(fields.elements()):
        if key == CREATE_TOPICS:
            fields.reader.skip(4)  # partition_index
        fields.reader.skip(4 * fields.elements())  # broker_ids
        fields.tags()
        assigned += 1
    if key == CREATE_TOPICS:
        for _ in range(fields.elements()):
            fields.skip_text()  # name of a configuration
            fields.skip_text()
            fields.tags()
        total = assigned or total
    fields.tags()
    added = total if key == CREATE_TOPICS else assigned or UNKNOWN
    return topic, max(total, UNKNOWN), max(added, UNKNOWN)


def _read_results(api: Api, version: int, body: bytes) -> dict[str, tuple[int, str, int]]:
    """Error code, name and partitions of each topic, by the name or id that the request uses.

    The number of partitions is UNKNOWN unless the topic was created.
    """
    fields = _Fields(body, api.flexible(version))
    if api.throttle_first(version):
        fields.reader.skip(4)
    results = {}
    for _ in range(fields.elements()):
        name, topic_id = fields.text(), ""
        if api.key == DELETE_TOPICS and version >= 6:
            topic_id = fields.topic_id()
        elif api.key == CREATE_TOPICS and version >= 7:
            fields.reader.skip(_TOPIC_ID_BYTES)
        error = fields.reader.int16()
        if version >= {CREATE_TOPICS: 1, DELETE_TOPICS: 5}.get(api.key, 0):
            fields.skip_text()  # error_message
        partitions = UNKNOWN
        if api.key == CREATE_TOPICS and version >= 5:
            partitions = fields.reader.int32()
            fields.reader.skip(2)  # replication_factor
            for _ in range(fields.elements()):
                fields.skip_text()  # name of a configuration
                fields.skip_text()
                fields.reader.skip(3)  # read_only, config_source, is_sensitive
                fields.tags()
        fields.tags()
        for topic in filter(None, (name, topic_id)):
            results[topic] = (error, name, partitions)
    return results


_ID: Final = "id:"  # a colon is in no name of a topic


class _Fields:
    """A Reader of one message in either encoding; counts the elements of all arrays."""

    def __init__(self, body: bytes, flexible: bool) -> None:
        self.reader = Reader(body, 0)
        self._flexible = flexible
        self._left = _MOST_ELEMENTS

    def text(self) -> str:
        """A string; empty for null."""
        reader = self.reader
        return (reader.compact_nullable_string() if self._flexible else reader.nullable_string()) or ""

    def skip_text(self) -> None:
        reader = self.reader
        reader.skip(max(reader.uvarint() - 1 if self._flexible else reader.int16(), 0))

    def topic_id(self) -> str:
        return _ID + self.reader.raw(_TOPIC_ID_BYTES).hex()

    def elements(self) -> int:
        """The length of an array; 0 for null. Raises ProtocolError for too many in one message."""
        reader = self.reader
        count = max(reader.compact_array_length() if self._flexible else reader.array_length(), 0)
        self._left -= count
        if self._left < 0:
            raise ProtocolError("cannot read a message with so many elements")
        return count

    def tags(self) -> None:
        if self._flexible:
            self.reader.skip_tagged()
