"""OTLP requests to spool records: whom attributes name, what cannot be parsed, splitting by client, limits."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData, ResourceMetrics

from exporters.model import ANONYMOUS, NO_BROKER, UNKNOWN
from exporters.spool.records import decode_push
from telemetry.decode.bounds import decompress
from telemetry.receiver.otlp_export import Export, OtlpLimits, export_of
from telemetry.receiver.otlp_identity import DIALECTS, Facts, Identity, OtlpCaller, facts_of, identity_of
from telemetry.receiver.otlp_parsing import OtlpError, ParsedRequest, parse_json, parse_protobuf
from tests.kit.memory import resident_kib
from tests.kit.otlp_payloads import attributes, field, in_metric, resource

SENDER = OtlpCaller("10.0.0.9", True, "otlp_grpc")
ANYBODY = OtlpCaller("10.0.0.9", False, "otlp_http")
ID = uuid.UUID("d3f1a2b4-c5e6-4f70-8192-a3b4c5d6e7f8")
KAFKA_ID = "0_GitMXmT3CBkqO0xdbn-A"  # the same by Kafka's Uuid.toString


def identity(
    stated: list[KeyValue], dialect: str = "any", sender: OtlpCaller = SENDER, *, point: bool = False
) -> Identity:
    names = DIALECTS[dialect].of_point if point else DIALECTS[dialect].of_resource
    return identity_of(facts_of(stated, names), sender, "ours")


SENDERS: dict[str, dict[str, Any]] = {
    "kip-714": {
        "client_id": "app",
        "client_instance_id": KAFKA_ID,
        "client_software_name": "apache-kafka-java",
        "client_software_version": "4.3.1",
        "client_source_address": "10.1.2.3",
        "client_source_port": "4711",
        "principal": "alice",
        "kafka.broker.id": "2",
        "kafka.cluster.id": "theirs",
    },
    "instaclustr": {"clientId": "app", "clientSoftwareName": "apache-kafka-java", "clientSoftwareVersion": "4.3.1"},
    "monedula": {
        "client_id": "app",
        "client_instance_id": str(ID),
        "kafka.client.principal": "User:alice",
        "kafka.client.address": "/10.1.2.3",
        "kafka.cluster.id": "theirs",
        "kafka.node.id": 2,
    },
    "strimzi": {"client_id": "app", "client_instance_id": KAFKA_ID, "principal": "alice", "client_address": "10.1.2.3"},
}


@pytest.mark.parametrize("dialect", SENDERS)
@pytest.mark.parametrize("read_as", ["itself", "any"])
def test_attributes_of_each_plugin_are_mapped(dialect: str, read_as: str) -> None:
    stated = SENDERS[dialect]
    client = identity(attributes(**stated), dialect if read_as == "itself" else "any", point=dialect == "strimzi")
    assert client.client_id == "app"
    assert client.connection.listener == "OTLP_GRPC"
    assert client.connection.principal == (ANONYMOUS if dialect == "instaclustr" else "alice")
    assert client.connection.source_address == ("" if dialect == "instaclustr" else "10.1.2.3")
    assert client.connection.broker_id == (2 if dialect in ("kip-714", "monedula") else NO_BROKER)
    assert client.connection.cluster == ("theirs" if dialect in ("kip-714", "monedula") else "ours")
    assert client.connection.software_name == (UNKNOWN if dialect in ("monedula", "strimzi") else "apache-kafka-java")
    if dialect != "instaclustr":
        assert client.client_instance_id == ID.bytes


@pytest.mark.parametrize(
    ("names", "point"),
    [
        (("client.id", "client.instance.id", "client.source.address"), False),
        (("client.id", "client.instance.id", "client.address"), False),
        (("clientId", "clientInstanceId", "clientAddress"), True),
    ],
)
def test_names_of_other_published_plugins_are_read(names: tuple[str, ...], point: bool) -> None:
    stated = dict(zip(names, ("app", KAFKA_ID, "/10.1.2.3"), strict=True))
    client = identity(attributes(**stated), "any", point=point)
    strimzis = identity(attributes(**SENDERS["strimzi"]), "strimzi", point=True)
    assert (client.client_id, client.client_instance_id) == (strimzis.client_id, strimzis.client_instance_id)
    assert client.connection.source_address == "10.1.2.3"


def test_configured_dialect_ignores_attributes_of_other_plugins() -> None:
    client = identity(attributes(clientId="app", principal="alice", client_id="other"), "instaclustr")
    assert (client.client_id, client.connection.principal) == ("app", ANONYMOUS)


def test_unauthenticated_sender_produces_claimed_identity() -> None:
    stated = attributes(**SENDERS["kip-714"])
    claimed = identity(stated, sender=ANYBODY)
    assert claimed.connection.principal == "claimed:alice"
    assert claimed.connection.cluster == "ours"
    assert claimed.connection.source_address == ANYBODY.address
    assert identity([], sender=ANYBODY).connection.principal == f"claimed:{ANONYMOUS}"


def test_last_value_of_a_repeated_attribute_wins() -> None:
    client = identity([*attributes(clientId="what the client sent"), *attributes(clientId="app")])
    assert (client.client_id, client.connection.principal) == ("app", ANONYMOUS)


def test_conflicting_attributes_produce_claimed_identity() -> None:
    client = identity(attributes(client_id="app", clientId="other", principal="alice"))
    assert client.connection.principal == "claimed:alice"
    assert identity(attributes(client_id="app", clientId="app", principal="alice")).connection.principal == "alice"


def test_missing_instance_id_is_derived_deterministically() -> None:
    derived, again = (identity(attributes(clientId="app")).client_instance_id for _ in range(2))
    assert derived == again
    assert len(derived) == 16
    others = [attributes(clientId="app-2"), attributes(clientId="app", client_instance_id="not an id")]
    assert derived not in [identity(other).client_instance_id for other in others]


@pytest.mark.parametrize("broker_id", ["", "-1", "one", "99999999999999999999", "2147483648", "\u0662"])
def test_invalid_broker_id_is_ignored(broker_id: str) -> None:
    client = identity(attributes(client_id="app", broker_id=broker_id))
    assert client.connection.broker_id == NO_BROKER


def test_text_attributes_are_truncated() -> None:
    client = identity(attributes(client_id="c" * 100_000, principal="p" * 100_000, client_software_name="s" * 100_000))
    assert len(client.client_id) == len(client.connection.principal) == len(client.connection.software_name) == 255


def test_non_text_attributes_are_ignored() -> None:
    odd = [KeyValue(key="client_id", value=AnyValue(bool_value=True)), KeyValue(key="principal")]
    assert facts_of(odd, DIALECTS["any"].of_resource) == Facts({}, False)


REPLACED = "Z\N{REPLACEMENT CHARACTER}rich"


def export_parsed(parsed: ParsedRequest, dialect: str = "any", **limits: int) -> Export:
    return export_of(parsed, SENDER, cluster="ours", dialect=DIALECTS[dialect], limits=OtlpLimits(**limits))


def clients(parsed: ParsedRequest) -> dict[str, int]:
    return {part.identity.client_id: part.points for part in export_parsed(parsed).parts}


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
    assert not export_parsed(parsed).response().HasField("partial_success")


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
    partial = export_parsed(parsed).response().partial_success
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
@example(b"\0\0\0\0\x80\x08", 91)  # a text that is not UTF-8, before another one of the same field
def test_damage_to_one_sender_leaves_the_others(damage: bytes, at: int) -> None:
    middle = bytearray(ExportMetricsServiceRequest.FromString(request("m")).resource_metrics[0].SerializeToString())
    middle[at % len(middle) : at % len(middle) + len(damage)] = damage
    parsed = parse_protobuf(request("a") + field(1, bytes(middle)) + request("b"))
    kept = clients(parsed)
    assert (kept["a"], kept["b"]) == (2, 2)


ZSTD = 4
JAVA = decompress(
    ZSTD, (Path(__file__).parents[2] / "vectors" / "java-4.3.1-producer.zst").read_bytes(), max_bytes=1 << 20
)


def exported(*resources: ResourceMetrics, dialect: str = "any", **limits: int) -> Export:
    request = parse_protobuf(ExportMetricsServiceRequest(resource_metrics=resources).SerializeToString())
    return export_parsed(request, dialect, **limits)


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
        export_parsed(request)


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
