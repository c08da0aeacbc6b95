"""The keys of the table of APIs beside kio's schema, error codes beside Kafka's; versions are in test_releases.py."""

import pytest
from kio.schema.index import api_key_map

from headroom.demo.jvm import Jvm
from telemetry.wire.apis import APIS
from telemetry.wire.errors import ErrorCode


def test_api_table_covers_every_api_of_the_schema() -> None:
    assert set(api_key_map) == set(APIS)


@pytest.mark.java
def test_error_codes_match_kafka(jvm: Jvm) -> None:
    errors = jvm.classes.org.apache.kafka.common.protocol.Errors
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name: errors.valueOf(code.name).code() for code in ErrorCode
    }
