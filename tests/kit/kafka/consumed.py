"""What a librdkafka consumer returned."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Message


def values_of(messages: Iterable[Message]) -> list[bytes]:
    """Of the records; errors, such as the end of a partition, are left out."""
    return [value for message in messages if not message.error() and (value := message.value()) is not None]
