"""The gRPC server of `headroom serve`: a push from the socket to rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_codec import SERVICE
from tests.kit.serving import Served, eventually, rows

TOKEN = "the-token-of-the-plug-in"
JAVA = (Path(__file__).parents[3] / "vectors" / "java-4.3.1-producer.zst").read_bytes()
ZSTD = 4
CLIENT = pb.Connection(
    client_id="app",
    cluster="theirs",
    listener="SASL_SSL",
    principal="alice",
    client_source_address="10.1.2.3",
    client_source_port=4711,
    client_software_name="apache-kafka-java",
    client_software_version="4.3.1",
    broker_id=7,
)


@pytest.mark.slow
def test_grpc_is_not_imported_by_the_app() -> None:
    code = "import sys, headroom.server.app; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.clickhouse
def test_push_is_stored_with_the_identity_stated_by_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_text(f"the-token-that-is-to-go\n{TOKEN}\n")
    (tmp_path / "subscriptions.yaml").write_text('all: {metrics: "*", interval.ms: 100}\n')
    monkeypatch.setenv("HEADROOM_GRPC__TOKEN_FILE", str(tmp_path / "tokens"))
    monkeypatch.setenv("HEADROOM_SUBSCRIPTIONS", str(tmp_path / "subscriptions.yaml"))
    with Served(tmp_path, "--grpc", "127.0.0.1:0") as served, grpc.insecure_channel(served.grpc) as channel:

        def call(method: str, request: bytes, token: str = TOKEN) -> bytes:
            metadata = [("authorization", f"Bearer {token}")]
            answer: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(request, metadata=metadata, timeout=30)
            return answer

        get = pb.GetTelemetrySubscriptionsRequest(connection=CLIENT).SerializeToString()
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            call("GetTelemetrySubscriptions", get, "another-token-than-that")
        granted = pb.GetTelemetrySubscriptionsResponse.FromString(call("GetTelemetrySubscriptions", get))
        push = pb.PushTelemetryRequest(
            client_instance_id=granted.client_instance_id,
            subscription_id=granted.subscription_id,
            compression_type=ZSTD,
            metrics=JAVA,
            connection=CLIENT,
        )
        assert pb.PushTelemetryResponse.FromString(call("PushTelemetry", push.SerializeToString())).error_code == 0

        query = """SELECT DISTINCT cluster, principal, client_id, hex(client_instance_id), software_name,
                   software_version, source_address, broker_id FROM headroom.client_metrics"""

        id_ = granted.client_instance_id.hex().upper()
        expected = ("theirs", "alice", "app", id_, "apache-kafka-java", "4.3.1", "10.1.2.3", 7)
        assert eventually(lambda: rows(served.sql, query), bool) == [expected]
        metrics = served.metrics()
        assert metrics["headroom_push_telemetry_total:NONE"] == 1
        assert metrics["headroom_grpc_refused_total:UNAUTHENTICATED"] == 1
        assert served.stop() == 0
