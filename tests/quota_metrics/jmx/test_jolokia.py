"""Jolokia's bulk read: the request, and the values parsed from its responses."""

from __future__ import annotations

import orjson
import pytest

from quota_metrics.jmx.jolokia import read_answer, read_request

ANSWER = [
    {
        "request": {"mbean": "kafka.server:type=Produce,*", "type": "read"},
        "value": {
            "kafka.server:client-id=app,type=Produce,user=user%20with%20spaces": {
                "byte-rate": 1234.5,
                "throttle-time": 70.25,
            },
            'kafka.server:client-id="a,b=\\"c\\"",type=Produce': {"byte-rate": 1, "throttle-time": "NaN"},
            "kafka.server:type=Produce": {"byte-rate": "ERROR: javax.management.AttributeNotFoundException"},
        },
        "status": 200,
    },
    {
        "request": {"mbean": "kafka.server:type=Fetch,*", "type": "read"},
        "error_type": "javax.management.InstanceNotFoundException",
        "status": 404,
    },
    {"value": {"kafka.server:type=Request,user=alice": {"request-time": 2.5, "throttle-time": None}}, "status": 200},
]


def test_bulk_request_reads_each_quota_type() -> None:
    asked = orjson.loads(read_request())
    assert [read["mbean"] for read in asked] == [
        f"kafka.server:type={bean},*" for bean in ("Produce", "Fetch", "Request", "ControllerMutation")
    ]
    assert [read["attribute"][0] for read in asked] == ["byte-rate", "byte-rate", "request-time", "mutation-rate"]


def test_bulk_response_is_parsed_into_names_and_values() -> None:
    reading = read_answer(orjson.dumps(ANSWER))
    assert reading.values == {
        ("Produce", "user with spaces", "app"): {"byte-rate": 1234.5, "throttle-time": 70.25},
        ("Produce", "", 'a,b="c"'): {"byte-rate": 1.0},
        ("Request", "alice", ""): {"request-time": 2.5},
    }
    assert reading.malformed == 0


def test_invalid_beans_are_counted_as_malformed() -> None:
    values = {"java.lang:type=Memory": {}, "kafka.server:type=Produce,x": {}, "kafka.server:type=Produce,user=a": 1}
    assert read_answer(orjson.dumps([{"status": 200, "value": values}])).malformed == 3


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"<html>", b"null"])
def test_invalid_bulk_response_raises_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_answer(body)
