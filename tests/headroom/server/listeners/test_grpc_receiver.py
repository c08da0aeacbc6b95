"""The gRPC server of `headroom serve`: invalid settings, and a push from the socket to rows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from headroom.config.settings import Address, ServeConfig
from headroom.errors import ServeError
from headroom.server.listeners.receivers import open_grpc
from telemetry.gateway.server import Gateway
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


def opening(**settings: Any) -> None:
    """Opens the receiver over a stand-in for the gateway: the tests expect an error before the gateway is used."""

    async def run() -> None:
        listen = Address(host="127.0.0.1", port=0)
        async with AsyncExitStack() as stack:
            await open_grpc(ServeConfig.model_validate({"grpc": settings}), listen, cast(Gateway, Nothing()), stack)

    asyncio.run(run())


class Nothing:
    receiver = cluster = commit = now_ms = None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "grpc.token_file: cannot read .*: No such file"),
        (b"\n", "grpc.token_file: .* contains no token"),
        (b"short", "at least 16 visible ASCII characters"),
        ("mit-Umlauten-ä-ö-ü".encode(), "at least 16 visible ASCII characters"),
    ],
)
def test_invalid_token_file_is_rejected(tmp_path: Path, content: bytes | None, fault: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ServeError, match=fault):
        opening(token_file=file)


def test_invalid_certificates_are_rejected(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(ServeError, match="cannot use the certificates of grpc: "):
        opening(certificate=junk, private_key=junk)
    with pytest.raises(ServeError, match=r"grpc.private_key: cannot read .*missing"):
        opening(certificate=junk, private_key=tmp_path / "missing")


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
