"""Our decoding against kio's encoding, for each response that kio knows; and against bytes that no broker sends."""

from __future__ import annotations

import random
from pkgutil import resolve_name
from typing import Any

import pytest
from kio.schema.describe_client_quotas.v0.response import DescribeClientQuotasResponse as QuotasV0
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse as QuotasV1
from kio.schema.index import schema_name_map
from kio.schema.metadata.v12.response import MetadataResponse
from kio.static.constants import EntityType

from quota_metrics.kafka.frames import decode_head
from quota_metrics.kafka.primitives import ProtocolError
from tests.kit.kio_entities import encode, random_entity

NO_THROTTLE = bytes(4)


@pytest.mark.slow
def test_every_response_decodes_as_kio_encoded_it() -> None:
    rng = random.Random(1)
    for versions in schema_name_map.values():
        for types in versions.values():
            if EntityType.response in types:
                response_type = resolve_name(types[EntityType.response])
                response = random_entity(rng, response_type)
                encoded = encode(response)
                assert decode_head(response_type, encoded) == (response, len(encoded))


def test_oversized_array_claim_is_refused() -> None:
    """The bytes that make kio 0.6.5 abort the process."""
    for response_type, claim in (
        (MetadataResponse, NO_THROTTLE + b"\xff\xff\xff\xff\x0f"),
        (QuotasV1, NO_THROTTLE + b"\x00\x00\x00\xff\xff\xff\xff\x7f"),
        (QuotasV0, NO_THROTTLE + b"\x00\x00\xff\xff\x7f\xff\xff\xff"),
    ):
        with pytest.raises(ProtocolError, match=r"cannot read \d+ elements|a varint"):
            decode_head(response_type, claim)


def test_unknown_tagged_fields_are_skipped() -> None:
    body = NO_THROTTLE + b"\x00\x00\x00\x01"  # no error, no message, no entries
    (entity, end), (known, _) = (decode_head(QuotasV1, body + tags) for tags in (b"\x01\x05\x03abc!", b"\x00"))
    assert (entity, end) == (known, len(body) + 6)  # not what is behind it


def test_unknown_error_code_is_kept_as_a_number() -> None:
    response, _ = decode_head(QuotasV0, NO_THROTTLE + b"\x27\x10\xff\xff\xff\xff\xff\xff")
    assert (response.error_code, response.entries) == (10_000, None)


def test_null_in_a_non_nullable_field_is_refused() -> None:
    with pytest.raises(ProtocolError, match="null"):
        decode_head(QuotasV1, NO_THROTTLE + b"\x00\x00\x00\x02\x02\x00")


@pytest.mark.parametrize("response_type", [QuotasV0, QuotasV1, MetadataResponse])
def test_mutated_responses_are_decoded_or_refused(response_type: Any) -> None:
    rng = random.Random(7)
    for _ in range(300):
        good = bytearray(encode(random_entity(rng, response_type)))
        for _ in range(rng.randrange(1, 4)):
            good[rng.randrange(len(good))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        junk = bytes(good[: rng.randrange(len(good) + 1)]) if rng.random() < 0.5 else bytes(good)
        try:
            decode_head(response_type, junk)
        except ProtocolError:
            continue
