"""The keys of the table of APIs beside kio's schema, error codes beside Kafka's; versions are in test_releases.py."""

import pytest
from kio.schema.index import api_key_map

from headroom.demo.jvm import Jvm
from telemetry.wire.apis import APIS
from telemetry.wire.errors import ErrorCode

OF_CONTROLLERS = {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}  # test_releases.py asks Kafka's classes


def test_api_table_covers_every_api_of_the_schema_that_a_broker_offers() -> None:
    assert set(api_key_map) == set(APIS) | OF_CONTROLLERS


@pytest.mark.java
def test_error_codes_match_kafka(jvm: Jvm) -> None:
    errors = jvm.classes.org.apache.kafka.common.protocol.Errors
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name: errors.valueOf(code.name).code() for code in ErrorCode
    }
