"""The OTLP receivers of `headroom serve`: data of OpenTelemetry's exporters from the socket to rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.otlp_receivers import BEARER, EXPORTERS, TOKEN, send_metrics
from tests.kit.serving import Served, eventually, rows


@pytest.mark.clickhouse
def test_exported_metrics_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_OTLP__TOKEN", TOKEN)
    monkeypatch.setenv("HEADROOM_OTLP__ALLOW_UNAUTHENTICATED", "true")
    free = "127.0.0.1:0"
    with Served(tmp_path, "--cluster", "c", "--otlp-grpc", free, "--otlp-http", free) as served:
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
