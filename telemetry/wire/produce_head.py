"""The head of a Produce request, before its topics: whether the broker answers it. Sans-I/O.

Source: ProduceRequest.json of Apache Kafka 4.3 and its predecessors, versions 0 to 13.
"""

from __future__ import annotations

from quota_metrics.kafka.primitives import ProtocolError, Reader, int16_at


def acks_of(data: bytes, client_id_end: int, end: int, version: int) -> int:
    """acks of a Produce request that ends at `end`. Raises ProtocolError when it has not arrived yet."""
    at = client_id_end + 2
    if version >= 9 and at + 2 <= end and at + 2 <= len(data) and not data[at - 2] and not data[at - 1]:
        return int16_at(data, at)  # no tagged fields and no transaction, as in nearly each request
    reader = Reader(data, min(client_id_end, len(data)))
    if version >= 9:
        reader.skip_tagged()
        reader.skip(max(reader.uvarint() - 1, 0))  # transactional_id
    elif version >= 3:
        reader.skip(max(reader.int16(), 0))
    acks = reader.int16()
    if reader.offset > end:
        raise ProtocolError("cannot read the head of a Produce request: it is truncated")
    return acks
