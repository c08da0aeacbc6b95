"""Requests of collectors of which something cannot be parsed: the rest is taken, the sender is told how much is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from telemetry.receiver.otlp_export import Export, OtlpLimits, export_of
from telemetry.receiver.otlp_identity import DIALECTS, OtlpCaller
from telemetry.receiver.otlp_parsing import OtlpError, ParsedRequest, parse_json, parse_protobuf
from tests.kit.otlp_payloads import field, resource

SENDER = OtlpCaller("10.0.0.9", True, "otlp_grpc")
REPLACED = "Z\N{REPLACEMENT CHARACTER}rich"


def exported(parsed: ParsedRequest) -> Export:
    return export_of(parsed, SENDER, cluster="ours", dialect=DIALECTS["any"], limits=OtlpLimits())


def clients(parsed: ParsedRequest) -> dict[str, int]:
    return {part.identity.client_id: part.points for part in exported(parsed).parts}


def request(*names: str, **stated: Any) -> bytes:
    return ExportMetricsServiceRequest(
        resource_metrics=[resource(2, client_id=name, **stated) for name in names]
    ).SerializeToString()


@pytest.mark.parametrize("place", ["rack", "client_id"])
def test_text_that_is_no_utf_8_costs_no_sender_anything(place: str) -> None:
    body = request("a") + request("ZZrich" if place == "client_id" else "b", client_rack="ZZrich") + request("c")
    parsed = parse_protobuf(body.replace(b"ZZrich", b"Z\xfcrich"))
    assert (parsed.has_replaced_texts, parsed.left_out) == (True, 0)
    assert clients(parsed) == {"a": 2, REPLACED if place == "client_id" else "b": 2, "c": 2}
    assert not exported(parsed).response().HasField("partial_success")


MALFORMED = {
    "a point": field(1, field(2, field(2, field(5, field(1, b"\x19\x01") + field(1, b"\x19" + bytes(8)))))),
    "an attribute of a point": field(1, field(2, field(2, field(5, field(1, field(7, b"\x0a\x05a")))))),
    "a metric": field(1, field(2, field(2, b"\x0a\x05a"))),
    "a scope": field(1, field(2, b"\x0a\x05a")),
    "a resource": field(1, field(1, b"\x0a\x05a")),
    "a resource's metrics": field(1, b"\xff"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_only_what_cannot_be_parsed_is_left_out(what: str) -> None:
    parsed = parse_protobuf(request("a") + MALFORMED[what] + request("b"))
    kept = clients(parsed)
    assert {name: kept[name] for name in "ab"} == {"a": 2, "b": 2}
    assert sum(kept.values()) == (5 if what == "a point" else 4)
    partial = exported(parsed).response().partial_success
    assert (parsed.left_out, partial.rejected_data_points) == (1, 1)
    assert partial.error_message == "1 data points that cannot be parsed"


@pytest.mark.parametrize("what", ["an attribute of a point", "a metric", "a scope"])
def test_request_of_which_only_a_resource_is_left_has_no_clients(what: str) -> None:
    assert clients(parse_protobuf(MALFORMED[what])) == {}


@pytest.mark.parametrize(
    "body", [MALFORMED["a resource"], MALFORMED["a resource's metrics"], b"\xff", request("a") + b"\x0a\xff"]
)
def test_request_of_which_nothing_can_be_parsed_is_refused(body: bytes) -> None:
    with pytest.raises(OtlpError, match=f"cannot parse {len(body)} bytes"):
        parse_protobuf(body)


def as_json(*names: str, **stated: Any) -> str:
    return json_format.MessageToJson(ExportMetricsServiceRequest.FromString(request(*names, **stated)))


@pytest.mark.parametrize("bad", [b"Z\xfcrich", b"Z\\ud83drich", b"Z\\udc00rich"])
def test_json_with_a_text_that_is_no_unicode_costs_no_sender_anything(bad: bytes) -> None:
    parsed = parse_json(as_json("a", "b", client_rack="ZZrich").encode().replace(b"ZZrich", bad))
    assert (parsed.has_replaced_texts, parsed.left_out, clients(parsed)) == (True, 0, {"a": 2, "b": 2})
    [rack, _] = [pair.value.string_value for pair in parsed.message.resource_metrics[0].resource.attributes][::-1]
    assert rack == REPLACED


@pytest.mark.parametrize(
    "bad",
    [
        {"asDouble": "x"},
        {"asDouble": 1, "attributes": [{"key": 7}]},
        7,
        {"asDouble": "NaN", "timeUnixNano": "-1"},
    ],
)
def test_only_the_point_that_is_not_json_of_otlp_is_left_out(bad: Any) -> None:
    document = json.loads(as_json("a", "b"))
    points = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"]
    points[1] = bad
    parsed = parse_json(json.dumps(document).encode())
    assert (parsed.left_out, sum(clients(parsed).values())) == (1, 3)


@given(st.binary(max_size=40), st.integers(0, 400))
def test_damage_to_one_sender_leaves_the_others(damage: bytes, at: int) -> None:
    middle = bytearray(ExportMetricsServiceRequest.FromString(request("m")).resource_metrics[0].SerializeToString())
    middle[at % len(middle) : at % len(middle) + len(damage)] = damage
    parsed = parse_protobuf(request("a") + field(1, bytes(middle)) + request("b"))
    kept = clients(parsed)
    assert (kept["a"], kept["b"]) == (2, 2)
