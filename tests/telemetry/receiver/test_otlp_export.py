"""OTLP requests to spool records: unchanged for one client, split for several, bounded, and refused when invalid."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData, ResourceMetrics

from exporters.spool.records import decode_push
from telemetry.decode.bounds import decompress
from telemetry.receiver.otlp_export import Export, OtlpLimits, export_of
from telemetry.receiver.otlp_identity import DIALECTS, OtlpCaller
from telemetry.receiver.otlp_parsing import OtlpError, ParsedRequest, parse_json, parse_protobuf
from tests.kit.memory import resident_kib
from tests.kit.otlp_payloads import attributes, field, in_metric, resource

ZSTD = 4
JAVA = decompress(
    ZSTD, (Path(__file__).parents[2] / "vectors" / "java-4.3.1-producer.zst").read_bytes(), max_bytes=1 << 20
)
SENDER = OtlpCaller("10.0.0.9", True, "otlp_grpc")


def exported(*resources: ResourceMetrics, dialect: str = "any", **limits: int) -> Export:
    request = parse_protobuf(ExportMetricsServiceRequest(resource_metrics=resources).SerializeToString())
    return export_of(request, SENDER, cluster="ours", dialect=DIALECTS[dialect], limits=OtlpLimits(**limits))


def test_request_of_one_client_is_stored_unchanged() -> None:
    whole = MetricsData.FromString(JAVA)
    for resource_metrics in whole.resource_metrics:
        resource_metrics.resource.attributes.extend(attributes(clientId="app"))
    export = exported(*whole.resource_metrics)
    (part,) = export.parts
    assert part.payload == whole.SerializeToString()
    push = decode_push(part.record(1_700_000_000_000))
    assert (push.client_id, push.payload, push.compression_type) == ("app", part.payload, 0)
    assert push.received_at_ms == 1_700_000_000_000
    assert push.connection == part.identity.connection


def test_request_of_several_clients_is_split() -> None:
    export = exported(*(resource(n + 1, client_id=f"app-{n % 2}") for n in range(4)))
    assert [(part.identity.client_id, part.points) for part in export.parts] == [("app-0", 4), ("app-1", 6)]
    assert export.rejected == 0
    assert not export.response().HasField("partial_success")


def test_points_are_split_by_point_attributes() -> None:
    of_points = [{"client_id": f"app-{n % 3}", "topic": f"t{n}"} for n in range(9)]
    export = exported(resource(9, of_points, service="collector"))
    assert [(part.identity.client_id, part.points) for part in export.parts] == [(f"app-{n}", 3) for n in range(3)]
    for n, part in enumerate(export.parts):
        (data,) = MetricsData.FromString(part.payload).resource_metrics
        assert data.resource.attributes[0].key == "service"
        (metric,) = data.scope_metrics[0].metrics
        assert data.scope_metrics[0].scope.name == "scope"
        assert [point.as_double for point in metric.gauge.data_points] == [n, n + 3, n + 6]


def test_split_sum_keeps_temporality_and_monotonicity() -> None:
    made = ResourceMetrics()
    metric = made.scope_metrics.add().metrics.add(name="s")
    delta = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
    metric.sum.aggregation_temporality, metric.sum.is_monotonic = delta, True
    for n in range(2):
        metric.sum.data_points.add(as_int=n, attributes=attributes(client_id=f"app-{n}"))
    for part in exported(made, dialect="strimzi").parts:
        (copy,) = MetricsData.FromString(part.payload).resource_metrics[0].scope_metrics[0].metrics
        assert (copy.sum.aggregation_temporality, copy.sum.is_monotonic) == (1, True)


def test_points_over_a_limit_are_rejected_and_the_rest_kept() -> None:
    export = exported(
        *(resource(2, client_id=f"app-{n}") for n in range(3)),
        resource(5, client_id="app-0"),
        clients=2,
        points_of_client=6,
    )
    assert [part.identity.client_id for part in export.parts] == ["app-1"]
    assert export.rejected == 2 + 7
    partial = export.response().partial_success
    assert partial.rejected_data_points == 9
    assert "more than 2 clients" in partial.error_message
    assert "more than 6 data points" in partial.error_message


def test_request_without_points_stores_nothing() -> None:
    assert exported(resource(0, client_id="app")).parts == []
    assert exported().parts == []


def test_json_and_protobuf_requests_are_equal() -> None:
    request = ExportMetricsServiceRequest(resource_metrics=[resource(3, client_id="app")])
    text = json_format.MessageToJson(request).replace('"resourceMetrics"', '"unheardOf": {}, "resourceMetrics"')
    assert parse_json(text.encode()) == ParsedRequest(request)


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b'{"resourceMetrics": 1}', b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000]
)
def test_invalid_json_raises_otlp_error(body: bytes) -> None:
    with pytest.raises(OtlpError, match=f"cannot parse {len(body)} bytes as Export"):
        parse_json(body)


@given(st.binary(max_size=200))
def test_random_bytes_are_parsed_or_refused(body: bytes) -> None:
    for parse in (parse_protobuf, parse_json):
        try:
            request = parse(body)
        except OtlpError:
            continue
        export_of(request, SENDER, cluster="ours", dialect=DIALECTS["any"], limits=OtlpLimits())


MILLIONS = 8_000_000  # 16 MB, the largest request by default
BOMBS = {
    "resources": lambda: b"\x0a\x00" * MILLIONS,
    "attributes of a resource": lambda: field(1, field(1, b"\x0a\x00" * MILLIONS)),
    "metrics": lambda: field(1, field(2, b"\x12\x00" * MILLIONS)),
    "points": lambda: in_metric(5, b"\x0a\x00" * MILLIONS),
}


@pytest.mark.parametrize("tail", [b"", b"\xff", field(1, b"\xff")], ids=["whole", "cut short", "with a bad part"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_request_of_too_many_parts_is_refused_without_allocation(bomb: str, tail: bytes) -> None:
    """16 kB of gzip each: 64 at once took 3.8 GB, and 20 s each while all others waited."""
    body = BOMBS[bomb]() + tail
    before_kib = resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    with pytest.raises(OtlpError, match="more than"):
        parse_protobuf(body)
    assert resident_kib("VmHWM") - before_kib < 16_384


def test_json_of_too_many_objects_is_refused() -> None:
    for body in (b'{"resourceMetrics":[' + b"{}," * 600_000 + b"{}]}", b'{"a":[' + b"1," * 2_100_000 + b"1]}"):
        with pytest.raises(OtlpError, match="more than"):
            parse_json(body)


def test_large_request_of_a_collector_is_parsed() -> None:
    body = ExportMetricsServiceRequest(resource_metrics=[resource(2_000, client_id=f"c{n}") for n in range(50)])
    assert len(parse_protobuf(body.SerializeToString()).message.resource_metrics) == 50


def test_clients_of_data_points_are_limited_before_they_are_divided() -> None:
    """200,000 clients that data points name took 8 s, each with a copy of the resource and its metrics."""
    of_points = [{"client_id": f"app-{n % 6}", "topic": f"t{n}"} for n in range(12)]
    export = exported(resource(12, of_points), clients=4)
    assert [(part.identity.client_id, part.points) for part in export.parts] == [(f"app-{n}", 2) for n in range(4)]
    assert (export.rejected, export.why) == (4, "4 data points of more than 4 clients")


def test_resources_repeated_for_each_client_are_limited() -> None:
    """Without a limit, 16 MB of which half is one attribute of the resource become terabytes."""
    of_points = [{"client_id": f"app-{n % 50}"} for n in range(100)]
    export = exported(resource(100, of_points, service="s" * 1_000), repeated_bytes=10_500)
    assert [(part.identity.client_id, part.points) for part in export.parts] == [(f"app-{n}", 2) for n in range(10)]
    assert sum(len(part.payload) for part in export.parts) < 13_000
    assert (export.rejected, export.response().partial_success.rejected_data_points) == (80, 80)
    assert "repeated in more than 10500 bytes" in export.why
