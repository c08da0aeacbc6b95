"""`headroom serve` forwards to an OTLP endpoint (mutual TLS) that stops and restarts."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
import structlog.testing
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from headroom.config.settings import ForwardConfig, ServeConfig
from headroom.demo.processes import LOOPBACK, free_ports
from headroom.server.processes.forward_process import open_forwarding, sender_of
from tests.headroom.server.processes.pushes import push
from tests.kit.certificates import CertificateAuthority
from tests.kit.otlp_endpoints import ENDPOINTS, Received, Refusal, ServerTls, grpc_endpoint
from tests.kit.proxy import running_proxy
from tests.kit.serving import Served, config_file, eventually, rows


@pytest.mark.release
@pytest.mark.clickhouse
def test_stopped_receiver_delays_nothing_and_receives_all_points_later(tmp_path: Path) -> None:
    [port] = free_ports(1)
    authority = CertificateAuthority(tmp_path)
    tls = ServerTls(authority.ca, *authority.issue("collector"))
    certificate, key = map(str, authority.issue("headroom"))
    forward = {"endpoint": f"https://{LOOPBACK}:{port}", "headers": {"authorization": "Bearer t"}}
    forward |= {"ca": str(authority.ca), "certificate": certificate, "private_key": key}
    config = config_file(tmp_path, push_ms=100, forward=forward)
    received = Received()
    with Served(tmp_path, "--cluster", "c", *config) as served:
        with grpc_endpoint(received, port, tls):
            asyncio.run(push(served.address, 1, 2))
            eventually(received.values, lambda values: values == [1, 2])
            # Without its answer the forwarder would send them again.
            eventually(served.metrics, lambda found: found["headroom_forward_points_total"] == 2)
        asyncio.run(push(served.address, 3, 4, 5))
        query = "SELECT value FROM headroom.points ORDER BY value"
        eventually(lambda: rows(served.sql, query), lambda stored: stored == [(1,), (2,), (3,), (4,), (5,)])
        eventually(served.metrics, lambda found: found["headroom_forward_up"] == 0)
        eventually(served.metrics, lambda found: found["headroom_forward_lag_bytes"] > 0)
        assert served.ready()[0] == 200
        [process] = served.children("headroom.server.processes.forward_process")
        psutil.Process(process.pid).kill()
        eventually(served.metrics, lambda found: found["headroom_forward_restarts_total"] == 1)
        with grpc_endpoint(received, port, tls):
            eventually(received.values, lambda values: values == [1, 2, 3, 4, 5])
            eventually(served.metrics, lambda found: found["headroom_forward_points_total"] == 5)
            received.refuses_all = Refusal("UNAUTHENTICATED")  # as after its token was changed
            asyncio.run(push(served.address, 6, 7))
            refused = eventually(served.metrics, lambda found: found["headroom_forward_up"] == 0)
            assert refused["headroom_forward_lag_bytes"] > 0
            received.refuses_all = None
            eventually(received.values, lambda values: values == [1, 2, 3, 4, 5, 6, 7])
            eventually(served.metrics, lambda found: found["headroom_forward_up"] == 1)
        assert served.metrics()["headroom_forward_lost_points_total:refused"] == 0
        assert served.metrics()["headroom_forward_lost_pushes_total:lag"] == 0
    assert {headers["authorization"] for headers in received.headers} == {"Bearer t"}
    assert {resource["client_id"] for resource in received.resources()} == {"early"}
    assert {resource["kafka.cluster.id"] for resource in received.resources()} == {"c"}


@pytest.mark.parametrize("protocol", ENDPOINTS)
def test_the_receiver_is_reached_by_the_environment_s_proxy(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received = Received()
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.add(name="g")
    for name in ("http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ENDPOINTS[protocol](received) as address, running_proxy(address) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:p%40ss@{proxy.address}")
        for excepted, endpoint in (("", "http://collector.invalid"), ("127.0.0.0/8", f"http://{address}")):
            monkeypatch.setenv("NO_PROXY", excepted)
            sender = sender_of(ForwardConfig.model_validate({"endpoint": endpoint, "protocol": protocol}))
            sender.send(request)
            sender.close()
    assert len(received.requests) == 2
    assert proxy.logins == ["Basic dXNlcjpwQHNz"]


def test_what_waits_is_removed_when_forwarding_is_off(tmp_path: Path) -> None:
    waiting = tmp_path / "forward" / "01-gw-v1.spool"
    waiting.parent.mkdir()
    waiting.write_bytes(b"12345")
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            assert open_forwarding(ServeConfig(data=tmp_path), AsyncExitStack()) is None
    assert [entry["bytes"] for entry in logged] == [5]
    assert list(tmp_path.iterdir()) == []
