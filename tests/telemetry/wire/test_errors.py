"""telemetry/wire/errors.py: the codes are Kafka's."""

from __future__ import annotations

import pytest

from headroom.demo.kit.jvm import Jvm
from telemetry.wire.errors import ErrorCode, InvalidSubscriptionError


@pytest.mark.java
def test_codes_are_kafkas(jvm: Jvm) -> None:
    errors = jvm.classes.org.apache.kafka.common.protocol.Errors
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name: errors.valueOf(code.name).code() for code in ErrorCode
    }


def test_an_invalid_subscription_has_a_code_and_words() -> None:
    error = InvalidSubscriptionError(ErrorCode.INVALID_CONFIG, "Illegal client matching pattern: x")
    assert (error.code, str(error)) == (40, "Illegal client matching pattern: x")
