"""Converts an OTLP ExportMetricsServiceRequest to spool records, one per client in it. Sans-I/O.

A request and a MetricsData have the same encoding (field 1: resource metrics). A request of one client, as broker
plug-ins send it, is therefore spooled unchanged; a request of several clients, as collectors send it, is split. Both
are push records in the spool, and ingest treats them like pushes over the Kafka protocol.
"""

from functools import partial
from typing import Any, Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from exporters.spool.records import push_origin, push_record, sender_bytes
from telemetry.decode.bounds import data_points, points_in
from telemetry.receiver.otlp_identity import Dialect, Facts, Identity, OtlpCaller, facts_of, identity_of
from telemetry.receiver.otlp_parsing import ParsedRequest

_UNCOMPRESSED: Final = 0  # CompressionType NONE


class OtlpLimits(NamedTuple):
    """Limits per request; data points over a limit are rejected (partial success)."""

    clients: int = 10_000
    points_of_client: int = 50_000
    # Resources, scopes and metrics are repeated for each client that data points name: 16 MiB could become 100 GiB.
    repeated_bytes: int = 67_108_864


class ClientPart(NamedTuple):
    """The telemetry of one client: MetricsData."""

    identity: Identity
    payload: bytes
    points: int

    def record(self, received_at_ms: int) -> bytes:
        sender = sender_bytes(self.identity.connection, self.identity.client_id)
        origin = push_origin(self.identity.client_instance_id, 0, False, _UNCOMPRESSED, sender)
        return push_record(received_at_ms, origin, self.payload)


class Export(NamedTuple):
    """The contents of a request. `rejected`: data points over a limit, or that cannot be parsed; `why` says which."""

    parts: list[ClientPart]
    rejected: int
    why: str
    has_replaced_texts: bool = False

    def response(self) -> ExportMetricsServiceResponse:
        """Empty for a full success, as OTLP requires."""
        response = ExportMetricsServiceResponse()
        if self.rejected:
            response.partial_success.rejected_data_points = self.rejected
            response.partial_success.error_message = self.why
        return response


def export_of(
    request: ParsedRequest, sender: OtlpCaller, *, cluster: str, dialect: Dialect, limits: OtlpLimits
) -> Export:
    """Splits a request by client, in order of appearance, and leaves out what is over a limit."""
    owners = _Owners(sender, cluster, dialect, limits.clients)
    clients = _Clients(limits)
    for resource_metrics in request.message.resource_metrics:
        identity, facts = owners.of_resource(resource_metrics.resource)
        if identity is not None:
            clients.add(identity, resource_metrics)
        else:
            _Split(resource_metrics, clients).divide(facts, owners)
    parts, points_over = [], 0
    for identity, data in clients.telemetry.items():
        points = sum(map(points_in, data.resource_metrics))
        if points > limits.points_of_client:
            points_over += points
        elif points:
            parts.append(ClientPart(identity, data.SerializeToString(), points))
    rejected = {
        "that cannot be parsed": request.left_out,
        f"of more than {limits.clients} clients": clients.points_over,
        f"of clients with more than {limits.points_of_client} data points each": points_over,
        f"whose resources and metrics would be repeated in more than {limits.repeated_bytes} bytes": (
            clients.points_over_repeated
        ),
    }
    why = ", ".join(f"{points} data points {reason}" for reason, points in rejected.items() if points)
    return Export(parts, sum(rejected.values()), why, request.has_replaced_texts)


class _Clients:
    """The telemetry by client, within the limits of one request. `points_over...`: data points left out."""

    def __init__(self, limits: OtlpLimits) -> None:
        self.telemetry: dict[Identity, Any] = {}  # MetricsData
        self.points_over = 0
        self.points_over_repeated = 0
        self._most = limits.clients
        self.left_bytes = limits.repeated_bytes  # of what data points of several clients share, and each has a copy of

    def admit(self, identity: Identity) -> bool:
        """Whether the client is one of the first `OtlpLimits.clients`."""
        if identity not in self.telemetry:
            if len(self.telemetry) == self._most:
                return False
            self.telemetry[identity] = MetricsData()
        return True

    def add(self, identity: Identity, resource_metrics: Any) -> None:
        if self.admit(identity):
            self.telemetry[identity].resource_metrics.append(resource_metrics)
        else:
            self.points_over += points_in(resource_metrics)


class _Owners:
    """The identity of a resource or data point; equal ones are resolved once."""

    def __init__(self, sender: OtlpCaller, cluster: str, dialect: Dialect, most: int) -> None:
        self._identity = partial(identity_of, sender=sender, cluster=cluster)
        self._dialect = dialect
        self._most = most
        self._of_resources: dict[bytes, tuple[Identity | None, Facts]] = {}
        self._of_points: dict[tuple[object, ...], Identity] = {}

    def of_resource(self, resource: Any) -> tuple[Identity | None, Facts]:
        """The identity is None when the data points carry it."""
        key = resource.SerializeToString()
        if key not in self._of_resources:
            facts = facts_of(resource.attributes, self._dialect.of_resource)
            is_owned = facts.names_a_client or not self._dialect.of_point
            self._of_resources[key] = self._identity(facts) if is_owned else None, facts
        return self._of_resources[key]

    def of_point(self, of_resource: Facts, point: Any) -> Identity | None:
        """None: the request already states as many different identities as it may name clients."""
        stated, ambiguous = facts_of(point.attributes, self._dialect.of_point)
        if of_resource.stated:
            stated = {**of_resource.stated, **stated}
        ambiguous |= of_resource.ambiguous
        key = (ambiguous, *stated.items())
        identity = self._of_points.get(key)
        if identity is None and len(self._of_points) < self._most:
            identity = self._of_points[key] = self._identity(Facts(stated, ambiguous))
        return identity


class _Split:
    """Divides the data points of a ResourceMetrics by client, repeating resource, scopes and metrics for each."""

    def __init__(self, resource_metrics: Any, clients: _Clients) -> None:
        self._whole = resource_metrics
        self._resource_bytes = resource_metrics.resource.ByteSize() + len(resource_metrics.schema_url)
        self._clients = clients
        self._pieces: dict[Identity, Any] = {}
        self._scopes: dict[Identity, Any] = {}  # copies of the current scope
        self._points: dict[Identity, Any] = {}  # the data points of copies of the current metric

    def divide(self, facts: Facts, owners: _Owners) -> None:
        clients = self._clients
        for scope_metrics in self._whole.scope_metrics:
            self._scope_metrics = scope_metrics
            self._scope_bytes = scope_metrics.scope.ByteSize() + len(scope_metrics.schema_url)
            self._scopes.clear()
            for metric in scope_metrics.metrics:
                self._metric = metric
                self._metric_bytes = len(metric.name) + len(metric.description) + len(metric.unit)
                self._points.clear()
                for point in data_points(metric):
                    identity = owners.of_point(facts, point)
                    if identity is None or not clients.admit(identity):
                        clients.points_over += 1
                    elif not self._add(identity, point):
                        clients.points_over_repeated += 1

    def _add(self, identity: Identity, point: Any) -> bool:
        """False when the copies for this client would exceed the limit of one request."""
        points = self._points.get(identity)
        if points is None:
            size = self._metric_bytes
            if identity not in self._scopes:
                size += self._scope_bytes
            if identity not in self._pieces:
                size += self._resource_bytes
            if size > self._clients.left_bytes:
                return False
            self._clients.left_bytes -= size
            if identity not in self._pieces:
                piece = self._clients.telemetry[identity].resource_metrics.add(schema_url=self._whole.schema_url)
                piece.resource.CopyFrom(self._whole.resource)
                self._pieces[identity] = piece
            if identity not in self._scopes:
                scope = self._pieces[identity].scope_metrics.add(schema_url=self._scope_metrics.schema_url)
                scope.scope.CopyFrom(self._scope_metrics.scope)
                self._scopes[identity] = scope
            metric, kind = self._metric, self._metric.WhichOneof("data")
            names = {"name": metric.name, "description": metric.description, "unit": metric.unit}
            data, copy = getattr(metric, kind), getattr(self._scopes[identity].metrics.add(**names), kind)
            copy.SetInParent()
            for name in ("aggregation_temporality", "is_monotonic"):
                if hasattr(data, name):
                    setattr(copy, name, getattr(data, name))
            points = self._points[identity] = copy.data_points
        points.append(point)
        return True
