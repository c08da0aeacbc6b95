"""What the cluster of a check answers to producers: some clients push only after they have produced or fetched, so
it has one topic, whose records are acknowledged and forgotten. Sans-I/O."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i16, i32Timedelta, i64

from quota_metrics.kafka.decoding import decode
from telemetry.wire.apis import INIT_PRODUCER_ID, PRODUCE

TOPIC: Final = "verify-client"
# The versions that are offered: later ones name topics by id.
VERSIONS: Final[Mapping[int, tuple[int, int]]] = {PRODUCE: (3, 12), INIT_PRODUCER_ID: (0, 4)}
_AT_ONCE: Final = i32Timedelta.parse(timedelta(0))


def produced(key: int, version: int, body: bytes) -> bytes:
    """The body of the response to a Produce or InitProducerId request of an offered version; empty where the client
    wants none (acks 0). Raises ProtocolError when it cannot be read."""
    request: Any = decode(load_request_schema(key, version), body)
    response: Any = load_response_schema(key, version)
    if key == INIT_PRODUCER_ID:
        return _written(
            response(throttle_time=_AT_ONCE, error_code=ErrorCode.none, producer_id=i64(1), producer_epoch=i16(0))
        )
    if not request.acks:
        return b""
    topic = _item(response, "responses")
    partition = _item(topic, "partition_responses")
    topics = tuple(
        topic(
            name=each.name,
            partition_responses=tuple(_stored(partition, one.index) for one in each.partition_data),
        )
        for each in request.topic_data
    )
    return _written(response(responses=topics, throttle_time=_AT_ONCE))


def _stored(partition: Any, index: int) -> Any:
    record_errors = {"record_errors": ()} if "record_errors" in partition.__dataclass_fields__ else {}
    return partition(index=index, error_code=ErrorCode.none, base_offset=i64(0), log_append_time=None, **record_errors)


def _item(entity: Any, field: str) -> Any:
    """The type of the items of a field, which is a tuple of entities."""
    return entity.__dataclass_fields__[field].type.__args__[0]


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()
