"""telemetry/wire/errors.py compared with Kafka's Errors enum."""

from __future__ import annotations

import pytest

from headroom.demo.jvm import Jvm
from telemetry.wire.errors import ErrorCode


@pytest.mark.java
def test_error_codes_match_kafka(jvm: Jvm) -> None:
    errors = jvm.classes.org.apache.kafka.common.protocol.Errors
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name: errors.valueOf(code.name).code() for code in ErrorCode
    }
