"""Requests of the gRPC service, and the responses of its server."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from exporters.model import Connection
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from tests.kit.telemetry_requests import subscription_id

ID = bytes.fromhex("d3f1a2b4c5e64f708192a3b4c5d6e7f8")
WIRE_ID = bytes.fromhex("a3f1a2b4c5e64f708192a3b4c5d6e7f8")
BROKERS_CLIENT: dict[str, Any] = {
    "client_id": "app",
    "cluster": "theirs",
    "listener": "SASL_SSL",
    "principal": "alice",
    "client_source_address": "10.1.2.3",
    "client_source_port": 4711,
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "broker_id": 0,
    "connection_id": "10.0.0.1:9092-10.1.2.3:4711-0-7",
}
FACTS = Connection("theirs", "SASL_SSL", "alice", "10.1.2.3", 4711, "apache-kafka-java", "4.3.1", 0)


def get(client_instance_id: bytes = ID, **connection: Any) -> pb.GetTelemetrySubscriptionsRequest:
    request = pb.GetTelemetrySubscriptionsRequest(client_instance_id=client_instance_id)
    if connection:
        request.connection.CopyFrom(pb.Connection(**connection))
    return request


def push(metrics: bytes = b"payload", client_instance_id: bytes = ID, **fields: Any) -> pb.PushTelemetryRequest:
    defaults = {"subscription_id": subscription_id(["*"], 1000, client_instance_id)}
    return pb.PushTelemetryRequest(client_instance_id=client_instance_id, metrics=metrics, **defaults | fields)


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as reported:
        await call
    return reported.value.code()
