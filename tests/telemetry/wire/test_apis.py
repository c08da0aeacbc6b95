"""The table of APIs compared with kio's schema, generated from Kafka's own files; error codes with Kafka's enum."""

import dataclasses
import pkgutil
from typing import Any

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from headroom.demo.jvm import Jvm
from telemetry.wire.apis import APIS
from telemetry.wire.errors import ErrorCode


def test_api_table_covers_every_api_of_the_schema() -> None:
    assert set(api_key_map) == set(APIS)


def responses_of(key: int) -> dict[int, Any]:
    versions = schema_name_map[api_key_map[key]]
    return {
        version: pkgutil.resolve_name(types[EntityType.response])
        for version, types in versions.items()
        if EntityType.response in types
    }


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(APIS))
def test_versions_flexibility_and_throttle_position_match_the_schema(key: int) -> None:
    api = APIS[key]
    responses = responses_of(key)
    for version, entity in responses.items():
        assert api.flexible(version) == entity.__flexible__
        first_field = dataclasses.fields(entity)[0].name if dataclasses.fields(entity) else ""
        assert api.throttle_first(version) == (first_field == "throttle_time"), (api.name, version)
    assert api.max_version == max(responses)


@pytest.mark.java
def test_error_codes_match_kafka(jvm: Jvm) -> None:
    errors = jvm.classes.org.apache.kafka.common.protocol.Errors
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name: errors.valueOf(code.name).code() for code in ErrorCode
    }
