"""Answers producers during a check. Sans-I/O.

Some clients push only after they have produced or fetched. The cluster of a check has one topic for them; its records
are acknowledged and forgotten.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i16, i32Timedelta, i64

from quota_metrics.kafka.decoding import decode_head
from telemetry.wire.apis import INIT_PRODUCER_ID, PRODUCE

TOPIC: Final = "verify-client"
# The versions that are offered: later ones name topics by id.
VERSIONS: Final[Mapping[int, tuple[int, int]]] = {PRODUCE: (3, 12), INIT_PRODUCER_ID: (0, 4)}
_AT_ONCE: Final = i32Timedelta.parse(timedelta(0))


def answer_producer(key: int, version: int, body: bytes) -> bytes:
    """The body of the response to a Produce or InitProducerId request; empty if the client wants none (acks 0).

    Raises ProtocolError when the request cannot be read.
    """
    request: Any = decode_head(load_request_schema(key, version), body)[0]
    response: Any = load_response_schema(key, version)
    if key == INIT_PRODUCER_ID:
        return _written(
            response(throttle_time=_AT_ONCE, error_code=ErrorCode.none, producer_id=i64(1), producer_epoch=i16(0))
        )
    if not request.acks:
        return b""
    topic = _item(response, "responses")
    partition = _item(topic, "partition_responses")
    stored: dict[str, Any] = {"error_code": ErrorCode.none, "base_offset": i64(0), "log_append_time": None}
    if "record_errors" in partition.__dataclass_fields__:
        stored["record_errors"] = ()
    topics = tuple(
        topic(
            name=sent_topic.name,
            partition_responses=tuple(partition(index=sent.index, **stored) for sent in sent_topic.partition_data),
        )
        for sent_topic in request.topic_data
    )
    return _written(response(responses=topics, throttle_time=_AT_ONCE))


def _item(entity: Any, field: str) -> Any:
    """The type of the items of a field, which is a tuple of entities."""
    return entity.__dataclass_fields__[field].type.__args__[0]


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()
