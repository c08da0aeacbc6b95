"""The gRPC and OTLP receivers of `headroom serve`: from the socket to rows."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.receiver.grpc_codec import SERVICE
from tests.kit.otlp_receivers import BEARER, EXPORTERS, TOKEN, send_metrics
from tests.kit.serving import Served, config_file, eventually, rows

JAVA = (Path(__file__).parents[3] / "vectors" / "java-4.3.1-producer.zst").read_bytes()
ZSTD, FREE = 4, "127.0.0.1:0"
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
def test_push_is_stored_with_the_identity_stated_by_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"the-token-that-is-to-go\n{TOKEN}\n")
    config = config_file(tmp_path, push_ms=100, grpc={"token_file": str(tmp_path / "tokens")})
    with Served(tmp_path, "--grpc", FREE, *config) as served, grpc.insecure_channel(served.grpc) as channel:

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


@pytest.mark.clickhouse
def test_exported_metrics_are_stored(tmp_path: Path) -> None:
    config = config_file(tmp_path, otlp={"token": TOKEN, "allow_unauthenticated": True})
    with Served(tmp_path, "--cluster", "c", "--otlp-grpc", FREE, "--otlp-http", FREE, *config) as served:
        client = {"client_id": "app", "principal": "alice", "client_instance_id": "0_GitMXmT3CBkqO0xdbn-A"}
        for name, exporter in EXPORTERS.items():
            assert send_metrics(exporter(served.addresses[f"otlp-{name}"], BEARER), client)
        assert send_metrics(EXPORTERS["http"](served.addresses["otlp-http"], {}), client)

        pushes = "SELECT transport, principal, client_id, points, error_code FROM headroom.pushes ORDER BY ALL"
        assert eventually(lambda: rows(served.sql, pushes), lambda found: len(found) == 3) == [
            ("otlp_http", "alice", "app", 3, 0),
            ("otlp_http", "claimed:alice", "app", 3, 0),
            ("otlp_grpc", "alice", "app", 3, 0),
        ]
        points = "SELECT DISTINCT metric, value FROM headroom.client_metrics WHERE principal = 'alice' ORDER BY metric"
        assert rows(served.sql, points) == [("lag", 7.5), ("sent", 3.0)]
        assert rows(served.sql, "SELECT count() FROM headroom.client_histograms WHERE principal = 'alice'") == [(2,)]
        eventually(lambda: served.metrics()["headroom_otlp_points_total"], lambda points: points == 9)
