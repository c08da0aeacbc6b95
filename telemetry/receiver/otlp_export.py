"""Converts an OTLP ExportMetricsServiceRequest to spool records, one per client in it. Sans-I/O.

A request and a MetricsData have the same encoding (field 1: resource metrics). A request of one client, as broker
plug-ins send it, is therefore spooled unchanged; a request of several clients, as collectors send it, is split. Both
are push records in the spool, and ingest treats them like pushes over the Kafka protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.spool.records import push_origin, push_record, sender_bytes
from telemetry.decode.budgets import DecodeError as StructureError
from telemetry.decode.budgets import Limits, OverBudget, check_outline
from telemetry.receiver.otlp_identity import Dialect, Facts, Identity, Sender, facts_of, identity_of

_UNCOMPRESSED: Final = 0  # CompressionType NONE
_MAX_JSON_DEPTH = 32
# Checked before anything is allocated: two bytes can become an object of a hundred. Requests of collectors are below.
_REQUEST = Limits(points=500_000, pairs=250_000)
_MAX_JSON_OBJECTS, _MAX_JSON_VALUES = 500_000, 2_000_000


class OtlpError(ValueError):
    """The request is invalid; the sender must not retry it."""


class OtlpLimits(NamedTuple):
    """Limits per request; data points over a limit are rejected (partial success)."""

    clients: int = 10_000
    points_of_client: int = 50_000


class Part(NamedTuple):
    """The telemetry of one client: MetricsData."""

    identity: Identity
    payload: bytes
    points: int

    def record(self, received_at_ms: int) -> bytes:
        """A push record of the spool."""
        sender = sender_bytes(self.identity.connection, self.identity.client_id)
        origin = push_origin(self.identity.client_instance_id, 0, False, _UNCOMPRESSED, sender)
        return push_record(received_at_ms, origin, self.payload)


class Export(NamedTuple):
    """The contents of a request. `rejected`: data points over a limit; `why` names the limit."""

    parts: list[Part]
    rejected: int
    why: str

    @property
    def points(self) -> int:
        """Number of data points kept."""
        return sum(part.points for part in self.parts)

    def response(self) -> ExportMetricsServiceResponse:
        """Empty for a full success, as OTLP requires."""
        response = ExportMetricsServiceResponse()
        if self.rejected:
            response.partial_success.rejected_data_points = self.rejected
            response.partial_success.error_message = self.why
        return response


def parse_protobuf(body: bytes) -> Any:
    """Raises OtlpError."""
    try:
        check_outline(body, _REQUEST)
        return ExportMetricsServiceRequest.FromString(body)
    except OverBudget as exc:
        raise OtlpError(str(exc)) from exc
    except (DecodeError, StructureError) as exc:
        raise OtlpError(f"cannot parse {len(body)} bytes as ExportMetricsServiceRequest") from exc


def parse_json(body: bytes) -> Any:
    """Parses OTLP/JSON: protobuf's JSON mapping, unknown fields ignored. Raises OtlpError."""
    if body.count(b"{") > _MAX_JSON_OBJECTS or body.count(b",") > _MAX_JSON_VALUES:
        raise OtlpError(f"more than {_MAX_JSON_OBJECTS} objects or {_MAX_JSON_VALUES} values in JSON")
    try:
        return json_format.Parse(
            body, ExportMetricsServiceRequest(), ignore_unknown_fields=True, max_recursion_depth=_MAX_JSON_DEPTH
        )
    except (json_format.ParseError, ValueError, RecursionError) as exc:
        raise OtlpError(f"cannot parse {len(body)} bytes as ExportMetricsServiceRequest in JSON") from exc


def export_of(request: Any, sender: Sender, *, cluster: str, dialect: Dialect, limits: OtlpLimits) -> Export:
    """Splits a request by client, in order of appearance."""
    owners = _Owners(sender, cluster, dialect)
    found: dict[Identity, MetricsData] = {}
    clients_over = 0
    for resource_metrics in request.resource_metrics:
        for identity, piece in _pieces(resource_metrics, owners):
            if identity not in found and len(found) == limits.clients:
                clients_over += _points_in(piece)
                continue
            found.setdefault(identity, MetricsData()).resource_metrics.append(piece)
    return _bounded(found, clients_over, limits)


def _bounded(found: dict[Identity, Any], clients_over: int, limits: OtlpLimits) -> Export:
    parts, points_over = [], 0
    for identity, data in found.items():
        points = sum(map(_points_in, data.resource_metrics))
        if points > limits.points_of_client:
            points_over += points
        elif points:
            parts.append(Part(identity, data.SerializeToString(), points))
    reasons = [
        f"{clients_over} data points of more than {limits.clients} clients" if clients_over else "",
        f"{points_over} of clients with more than {limits.points_of_client} data points each" if points_over else "",
    ]
    return Export(parts, clients_over + points_over, ", ".join(filter(None, reasons)))


class _Owners:
    """The identity of a resource or data point; equal resources are resolved once."""

    def __init__(self, sender: Sender, cluster: str, dialect: Dialect) -> None:
        self._sender = sender
        self._cluster = cluster
        self._dialect = dialect
        self._known: dict[bytes, Identity | None] = {}

    def of_resource(self, resource: Any) -> Identity | None:
        """None when the data points carry the identity, or nothing does."""
        key = resource.SerializeToString()
        if key not in self._known:
            facts = facts_of(resource.attributes, self._dialect.of_resource)
            is_owned = facts.names_a_client or not self._dialect.of_point
            self._known[key] = self._identity(facts) if is_owned else None
        return self._known[key]

    def of_point(self, resource: Any, point: Any) -> Identity:
        of_resource = facts_of(resource.attributes, self._dialect.of_resource)
        of_point = facts_of(point.attributes, self._dialect.of_point)
        return self._identity(
            Facts({**of_resource.stated, **of_point.stated}, of_resource.ambiguous or of_point.ambiguous)
        )

    def _identity(self, facts: Facts) -> Identity:
        return identity_of(facts, self._sender, self._cluster)


def _pieces(resource_metrics: Any, owners: _Owners) -> Iterator[tuple[Identity, Any]]:
    """Splits ResourceMetrics so that each belongs to one client."""
    identity = owners.of_resource(resource_metrics.resource)
    if identity is not None:
        yield identity, resource_metrics
        return
    split = _Split(resource_metrics)
    for scope_metrics in resource_metrics.scope_metrics:
        split.scope(scope_metrics)
        for metric in scope_metrics.metrics:
            for point in _data_points(metric):
                split.add(owners.of_point(resource_metrics.resource, point), metric, point)
    yield from split.pieces.items()


class _Split:
    """Splits the data points of a ResourceMetrics by client, repeating scopes and metrics for each client."""

    def __init__(self, resource_metrics: Any) -> None:
        self.pieces: dict[Identity, Any] = {}
        self._whole = resource_metrics
        self._scopes: dict[Identity, Any] = {}  # the scope being filled
        self._metrics: dict[Identity, tuple[Any, Any]] = {}  # the metric of the request, and its copy being filled

    def scope(self, scope_metrics: Any) -> None:
        self._scope_metrics = scope_metrics
        self._scopes.clear()
        self._metrics.clear()

    def add(self, identity: Identity, metric: Any, point: Any) -> None:
        of, copy = self._metrics.get(identity, (None, None))
        if of is not metric:
            copy = self._copy_of(identity, metric)
            self._metrics[identity] = (metric, copy)
        _data_points(copy).append(point)

    def _copy_of(self, identity: Identity, metric: Any) -> Any:
        if identity not in self._scopes:
            self._scopes[identity] = self._new_scope(identity)
        copy = self._scopes[identity].metrics.add(name=metric.name, description=metric.description, unit=metric.unit)
        kind = metric.WhichOneof("data")
        getattr(copy, kind).SetInParent()
        for name in ("aggregation_temporality", "is_monotonic"):
            if hasattr(getattr(metric, kind), name):
                setattr(getattr(copy, kind), name, getattr(getattr(metric, kind), name))
        return copy

    def _new_scope(self, identity: Identity) -> Any:
        if identity not in self.pieces:
            piece = type(self._whole)(schema_url=self._whole.schema_url)
            piece.resource.CopyFrom(self._whole.resource)
            self.pieces[identity] = piece
        scope = self.pieces[identity].scope_metrics.add(schema_url=self._scope_metrics.schema_url)
        scope.scope.CopyFrom(self._scope_metrics.scope)
        return scope


def _data_points(metric: Any) -> Any:
    kind = metric.WhichOneof("data")
    return getattr(metric, kind).data_points if kind else ()


def _points_in(resource_metrics: Any) -> int:
    return sum(len(_data_points(metric)) for scope in resource_metrics.scope_metrics for metric in scope.metrics)
