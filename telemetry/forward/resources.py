"""A push as OTLP ResourceMetrics: the client's identity as resource attributes, equal resources merged. Sans-I/O.

Attribute names: KIP-714 ("client identity labels") and OpenTelemetry's semantic conventions (messaging.client.id,
client.address, client.port; kafka.cluster.id as in the collector's Kafka receivers). The identity comes from the
connection: attributes of these names in the payload are replaced. service.* tell clients apart where receivers go by
them, as Prometheus does for its labels job and instance; those that the client sent are kept.
"""

from typing import Any, Final

from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, ResourceMetrics

from exporters.model import NO_BROKER, Push
from telemetry.decode.bounds import DecodeError, PayloadLimits, check_structure, data_points, decompress, points_in
from telemetry.decode.lenient import METRICS
from telemetry.forward.selection import ForwardSelection
from telemetry.subscriptions.java.hash import uuid_text

_SERVICE_NAME: Final = "kafka-client"  # of all: some vendors open a data set for each name, and clients make client ids


def identity_attributes(push: Push) -> dict[str, str | int]:
    """Resource attributes of a client, without those that are unknown."""
    connection = push.connection
    port = connection.source_port
    attributes: dict[str, str | int | None] = {
        "client_id": push.client_id,
        "client_instance_id": uuid_text(push.client_instance_id),
        "client_software_name": connection.software_name,
        "client_software_version": connection.software_version,
        "client_source_address": connection.source_address or None,
        "client_source_port": str(port) if port else None,
        "principal": connection.principal,
        "broker_id": None if connection.broker_id == NO_BROKER else str(connection.broker_id),
        "kafka.cluster.id": connection.cluster,
        "messaging.client.id": push.client_id,
        "client.address": connection.source_address or None,
        "client.port": port or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def resource_metrics_of(push: Push, selection: ForwardSelection, *, max_decompressed_bytes: int) -> list[Any]:
    """The selected metrics of a push; empty if none is selected.

    Java clients send one ResourceMetrics per data point; those with equal resource and scope are merged, in order of
    arrival. Raises DecompressError, TooLarge, DecodeError, OverBudget.
    """
    payload = decompress(push.compression_type, push.payload, max_bytes=max_decompressed_bytes)
    check_structure(payload, PayloadLimits())
    try:
        data = METRICS.read(payload).message
    except ProtobufError as exc:
        raise DecodeError(f"cannot decode {len(payload)} bytes as MetricsData") from exc
    identity = identity_attributes(push)
    service = {"service.name": _SERVICE_NAME, "service.instance.id": uuid_text(push.client_instance_id)}
    if push.connection.cluster:
        service["service.namespace"] = push.connection.cluster
    resources: dict[tuple[bytes, str], Any] = {}  # ResourceMetrics by resource
    scopes: dict[tuple[bytes, str, bytes, str], Any] = {}  # ScopeMetrics by resource and scope
    for resource_metrics in data.resource_metrics:
        resource = (resource_metrics.resource.SerializeToString(), resource_metrics.schema_url)
        for scope_metrics in resource_metrics.scope_metrics:
            kept = [metric for metric in scope_metrics.metrics if selection.takes_metric(metric.name)]
            if not kept:
                continue
            scope = (*resource, scope_metrics.scope.SerializeToString(), scope_metrics.schema_url)
            if scope not in scopes:
                if resource not in resources:
                    made = resources[resource] = ResourceMetrics(schema_url=resource_metrics.schema_url)
                    made.resource.dropped_attributes_count = resource_metrics.resource.dropped_attributes_count
                    made.resource.attributes.extend(
                        pair for pair in resource_metrics.resource.attributes if pair.key not in identity
                    )
                    sent = {pair.key for pair in resource_metrics.resource.attributes}
                    added = {name: text for name, text in service.items() if name not in sent}
                    for name, value in (added | identity).items():
                        kind = "int_value" if isinstance(value, int) else "string_value"
                        made.resource.attributes.add(key=name, value={kind: value})
                scopes[scope] = resources[resource].scope_metrics.add(schema_url=scope_metrics.schema_url)
                scopes[scope].scope.CopyFrom(scope_metrics.scope)
            scopes[scope].metrics.extend(kept)
    return list(resources.values())


def by_temporality(resource_metrics: Any) -> list[Any]:
    """The data points with delta temporality and the others, each a ResourceMetrics if there are any."""
    parts = [ResourceMetrics(), ResourceMetrics()]
    for is_delta, part in enumerate(parts):
        part.CopyFrom(resource_metrics)
        for scope_metrics in part.scope_metrics:
            for number in reversed(range(len(scope_metrics.metrics))):
                metric = scope_metrics.metrics[number]
                data = getattr(metric, metric.WhichOneof("data") or "gauge")
                if (getattr(data, "aggregation_temporality", None) == AGGREGATION_TEMPORALITY_DELTA) != is_delta:
                    del scope_metrics.metrics[number]
    return [part for part in parts if points_in(part)]


def divided(resource_metrics: Any) -> tuple[Any, Any]:
    """Two ResourceMetrics, each with half of the data points."""
    points = points_in(resource_metrics)
    return _part(resource_metrics, 0, points // 2), _part(resource_metrics, points // 2, points)


def _part(resource_metrics: Any, first: int, last: int) -> Any:
    """The data points of these numbers, with what they share."""
    part = ResourceMetrics()
    part.CopyFrom(resource_metrics)
    end = points_in(part)
    for scope_metrics in reversed(part.scope_metrics):
        for number in reversed(range(len(scope_metrics.metrics))):
            points = data_points(scope_metrics.metrics[number])
            end -= len(points)  # the number of its first
            del points[max(0, last - end) :]
            del points[: max(0, first - end)]
            if not points:
                del scope_metrics.metrics[number]
    return part
