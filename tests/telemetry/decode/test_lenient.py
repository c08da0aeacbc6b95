"""Texts of clients that are no UTF-8: the points are kept, with replacement characters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError as ProtobufError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import validate_payload
from telemetry.decode.lenient import METRICS
from telemetry.decode.series import KnownSeries, identity
from telemetry.wire.errors import ErrorCode
from tests.telemetry.decode.payloads import NOW_MS, NOW_NS, PUSH, gauge, new_decoder, number, payload, text

BAD, REPLACED = b"Z\xfcrich", "Z\N{REPLACEMENT CHARACTER}rich"
STANDING = "ZZrich"  # as long as BAD


def with_bad_text(place: str, value: float = 7.0) -> bytes:
    """A push with one text that is no UTF-8."""
    at = {name: STANDING if name == place else "good" for name in ("rack", "key", "metric", "unit", "of point")}
    point = number(as_double=value, attributes=[text("topic", at["of point"])], start_time_unix_nano=NOW_NS - 1)
    return payload(
        gauge(point, name=at["metric"], unit=at["unit"]),
        resource=(text("client_rack", at["rack"]), text(at["key"], "v")),
    ).replace(STANDING.encode(), BAD)


@pytest.mark.parametrize("place", ["rack", "key", "metric", "unit", "of point"])
def test_push_with_a_text_that_is_no_utf_8_is_kept(place: str) -> None:
    body = with_bad_text(place)
    with pytest.raises(ProtobufError):
        MetricsData.FromString(body)
    assert validate_payload(0, body, max_decompressed_bytes=1 << 20, limits=PayloadLimits()) is ErrorCode.NONE
    outcome, refusal = new_decoder().outcome(replace(PUSH, payload=body))
    assert refusal is None
    assert outcome.has_replaced_texts
    assert outcome.decoded.points.value == [7.0]
    [series] = outcome.decoded.series.values()
    stored = [series.metric, series.unit, *sum(series.attributes + series.resource, ())]
    assert [text for text in stored if "rich" in text] == [REPLACED]


def test_later_pushes_of_the_structure_use_a_template_and_are_counted() -> None:
    known_series = KnownSeries(1 << 20, 3_600_000)
    reader = new_decoder(known_series)
    known_series.begin(NOW_MS)
    first, _ = reader.outcome(replace(PUSH, payload=with_bad_text("rack")))
    assert first.match is None
    known_series.add(identity(PUSH), first.decoded.series, NOW_MS)
    known_series.keep()
    later, refusal = reader.outcome(replace(PUSH, payload=with_bad_text("rack", 9.0)))
    assert refusal is None
    assert later.match is not None
    assert later.has_replaced_texts
    assert later.match.template.names == ("good",)
    good, _ = reader.outcome(replace(PUSH, payload=with_bad_text("")))
    assert not good.has_replaced_texts


def test_what_is_no_message_with_any_texts_is_refused() -> None:
    for body in (b"\xff", with_bad_text("rack")[:-1], with_bad_text("rack") + b"\x0a\x05ab"):
        code = validate_payload(0, body, max_decompressed_bytes=1 << 20, limits=PayloadLimits())
        assert code is ErrorCode.INVALID_RECORD
        _, refusal = new_decoder().outcome(replace(PUSH, payload=body))
        assert refusal is not None


@st.composite
def messages(draw: Any) -> Any:
    """MetricsData with bytes where its texts are."""
    raw = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode))
    data: Any = METRICS.with_bytes()
    for _ in range(draw(st.integers(1, 3))):
        resource_metrics = data.resource_metrics.add(schema_url=draw(raw))
        value = resource_metrics.resource.attributes.add(key=draw(raw)).value
        for _ in range(draw(st.integers(0, 3))):
            value = value.kvlist_value.values.add(key=draw(raw)).value
        value.string_value = draw(raw)
        resource_metrics.resource.attributes.add(key=b"bytes").value.bytes_value = draw(raw)
        metric = resource_metrics.scope_metrics.add().metrics.add(name=draw(raw), unit=draw(raw))
        metric.sum.data_points.add(as_int=1).exemplars.add().filtered_attributes.add(key=draw(raw))
    return data


def as_text(message: Any, other: Any) -> None:
    """Whether two messages are equal but for texts, which the first has as Python decodes the other's bytes."""
    fields = message.ListFields()
    assert [field.full_name for field, _ in fields] == [field.full_name for field, _ in other.ListFields()]
    for (field, value), (_, raw) in zip(fields, other.ListFields(), strict=True):
        if field.message_type is None:
            assert value == (raw.decode("utf-8", "replace") if isinstance(value, str) else raw)
            continue
        pairs = [(value, raw)] if hasattr(value, "ListFields") else zip(value, raw, strict=True)
        for part, raw_part in pairs:
            as_text(part, raw_part)


@given(messages())
def test_only_texts_differ_from_what_was_sent(raw: Any) -> None:
    body = raw.SerializeToString()
    read = METRICS.read(body)
    as_text(read.message, raw)
    try:
        assert MetricsData.FromString(body) == read.message
    except ProtobufError:
        assert read.replaced
    else:
        assert not read.replaced
