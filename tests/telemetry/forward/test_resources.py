"""Which parts of a push are forwarded, and the client that they name."""

import gzip
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, ResourceMetrics

from exporters.model import Connection, Push
from telemetry.decode.bounds import DecodeError, DecompressError, TooLarge, decompress, points_in
from telemetry.forward.resources import by_temporality, divided, resource_metrics_of
from telemetry.forward.selection import ForwardSelection
from tests.telemetry.decode.payloads import CONNECTION, PUSH, VECTORS, gauge, number, payload, text

MIB = 1 << 20


def push(body: bytes, compression_type: int = 0, **more: Any) -> Push:
    connection = more.pop("connection", CONNECTION)
    return Push(connection, "app-1", bytes(range(16)), PUSH.received_at_ms, 7, False, compression_type, body)


def forwarded(push: Push, selection: ForwardSelection = ForwardSelection()) -> list[Any]:
    return resource_metrics_of(push, selection, max_decompressed_bytes=MIB)


def attributes(resource_metrics: Any) -> dict[str, str | int]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in resource_metrics.resource.attributes}


def test_forwarded_identity_comes_from_the_connection() -> None:
    claimed = (text("principal", "mallory"), text("client_id", "other"), text("rack", "r1"), text("client_id", "twice"))
    [resource] = forwarded(push(payload(gauge(number(as_double=1)), resource=claimed)))
    assert attributes(resource) == {
        "rack": "r1",
        "client_id": "app-1",
        "client_instance_id": "AAECAwQFBgcICQoLDA0ODw",
        "client_software_name": "apache-kafka-java",
        "client_software_version": "4.3.1",
        "client_source_address": "10.0.0.7",
        "client_source_port": "50000",
        "principal": "alice",
        "broker_id": "1",
        "kafka.cluster.id": "prod",
        "messaging.client.id": "app-1",
        "client.address": "10.0.0.7",
        "client.port": 50000,
        "service.name": "kafka-client",
        "service.namespace": "prod",
        "service.instance.id": "AAECAwQFBgcICQoLDA0ODw",
    }


def test_a_service_that_the_client_names_is_kept() -> None:
    body = payload(gauge(number(as_double=1)), resource=(text("service.name", "shop"), text("service.namespace", "")))
    [resource] = forwarded(push(body, connection=replace(CONNECTION, cluster="")))
    sent = attributes(resource)
    assert (sent["service.name"], sent["service.namespace"]) == ("shop", 0), "0: the text is empty"
    assert sent["service.instance.id"] == sent["client_instance_id"]
    assert len(resource.resource.attributes) == len(sent), "each name once"


def test_texts_that_are_no_utf_8_are_forwarded_with_replacement_characters() -> None:
    body = payload(gauge(number(as_double=1)), resource=(text("client_rack", "Zürich"),))
    [resource] = forwarded(push(body.replace("Zürich".encode(), b"Z\xfcrich!")))
    assert attributes(resource)["client_rack"] == "Z\N{REPLACEMENT CHARACTER}rich!"


def test_unknown_attributes_are_omitted() -> None:
    nobody = Connection("", "PLAINTEXT", "ANONYMOUS", "", 0, "unknown", "unknown", -1)
    [resource] = forwarded(push(payload(gauge(number(as_double=1))), connection=nobody))
    unknown = {"broker_id", "client.port", "client_source_port", "client.address", "service.namespace"}
    assert unknown & attributes(resource).keys() == set()


def test_java_push_becomes_one_resource_with_all_points() -> None:
    body = (VECTORS / "java-4.3.1-producer.zst").read_bytes()
    [resource] = forwarded(push(body, 4))
    sent = MetricsData.FromString(decompress(4, body, max_bytes=MIB))
    assert len(sent.resource_metrics) > 1
    assert points_in(resource) == sum(map(points_in, sent.resource_metrics))
    names = sorted(metric.name for part in sent.resource_metrics for metric in part.scope_metrics[0].metrics)
    assert sorted(metric.name for scope in resource.scope_metrics for metric in scope.metrics) == names


def test_metrics_are_selected_by_prefix() -> None:
    body = payload(*(gauge(number(as_double=1), name=name) for name in ("a.b", "a.c", "b")))
    [resource] = forwarded(push(body), ForwardSelection("a.,x"))
    assert [metric.name for metric in resource.scope_metrics[0].metrics] == ["a.b", "a.c"]
    assert forwarded(push(body), ForwardSelection("x")) == []


@pytest.mark.parametrize(
    ("match", "is_taken"),
    [("", True), ("client_id=app-.*", True), ("client_id=app", False), ("principal=alice,cluster=prod", True)],
)
def test_clients_are_selected_by_match_criteria(match: str, is_taken: bool) -> None:
    assert ForwardSelection("*", match).takes_push(push(b"x")) is is_taken


def test_otlp_and_empty_pushes_are_not_forwarded() -> None:
    by_otlp = Connection("prod", "OTLP_GRPC", "alice", "10.0.0.7", 50_000, "", "", 1)
    assert not ForwardSelection().takes_push(push(b"x", connection=by_otlp))
    assert not ForwardSelection().takes_push(push(b""))


@pytest.mark.parametrize(
    ("metrics", "match", "message"),
    [
        ("*", "client_id=(", "Illegal client matching pattern"),
        ("*", "colour=red", "Illegal client matching pattern"),
        ("a,,b", "", "'metrics' values must not be empty"),
    ],
)
def test_invalid_selection_raises_value_error(metrics: str, match: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ForwardSelection(metrics, match)


@pytest.mark.parametrize(
    ("body", "codec", "error"),
    [
        (b"\xff" * 9, 0, DecodeError),
        (b"no gzip", 1, DecompressError),
        (gzip.compress(bytes(2 * MIB), mtime=0), 1, TooLarge),
    ],
)
def test_unreadable_payload_raises(body: bytes, codec: int, error: type[ValueError]) -> None:
    with pytest.raises(error):
        forwarded(push(body, codec))


def test_deltas_of_a_java_client_are_told_apart() -> None:
    [whole] = forwarded(push((VECTORS / "java-4.3.1-producer.zst").read_bytes(), compression_type=4))
    others, deltas = by_temporality(whole)
    assert points_in(others) + points_in(deltas) == points_in(whole)
    assert {metric.WhichOneof("data") for scope in others.scope_metrics for metric in scope.metrics} == {"gauge"}
    assert [deltas] == by_temporality(deltas)


@pytest.mark.parametrize("name", ["java-4.3.1-producer.zst", ""])
def test_halves_have_all_points_once_with_what_they_share(name: str) -> None:
    if name:
        [whole] = forwarded(push((VECTORS / name).read_bytes(), compression_type=4))
    else:
        [whole] = forwarded(push(payload(gauge(*(number(as_double=n) for n in range(7))), gauge(number(as_double=7)))))
    halves = divided(whole)
    assert sum(map(points_in, halves)) == points_in(whole)
    assert abs(points_in(halves[0]) - points_in(halves[1])) <= 1
    assert {half.resource.SerializeToString() for half in halves} == {whole.resource.SerializeToString()}

    def points(*parts: ResourceMetrics) -> list[tuple[str, str, bytes]]:
        return [
            (scope.scope.name, metric.name, point.SerializeToString())
            for part in parts
            for scope in part.scope_metrics
            for metric in scope.metrics
            for point in getattr(metric, metric.WhichOneof("data") or "").data_points
        ]

    assert points(*halves) == points(whole)
    assert all(metric.WhichOneof("data") for half in halves for scope in half.scope_metrics for metric in scope.metrics)
