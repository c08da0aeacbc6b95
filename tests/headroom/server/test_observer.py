"""`headroom serve --observe`: observing a cluster without a gateway."""

from pathlib import Path

import pytest

from headroom.cli.serve_api import ask
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin
from tests.kit.otlp_receivers import EXPORTERS, send_metrics
from tests.kit.serving import Served, config_file, eventually, rows
from tests.kit.terminal.fake_serve import FakeServe

# A broker's Prometheus agent.
_AGENT = b"""# TYPE kafka_server_quota_byte_rate gauge
kafka_server_quota_byte_rate{resource="Produce",user="observed",clientId=""} 512000.0
kafka_server_quota_throttle_time{resource="Produce",user="observed",clientId=""} 40.0
"""


@pytest.mark.kafka
@pytest.mark.java
@pytest.mark.clickhouse
def test_observer_stores_quotas_usage_and_telemetry(tmp_path: Path, kafka: LocalCluster, kafka_admin: Admin) -> None:
    kafka_admin.alter_quota({"user": "observed"}, {"producer_byte_rate": 640_000.0})
    with FakeServe({"/metrics": (200, _AGENT)}) as agent:
        target = {"broker_id": 1, "agent": "prometheus", "url": f"http://{agent.http}/metrics"}
        config = config_file(tmp_path, quotas={"jmx": {"targets": [target]}})
        arguments = ["--observe", kafka.bootstrap, "--cluster", "seen", *config]
        with Served(tmp_path, *arguments, "--otlp-http", "127.0.0.1:0") as served:
            assert "kafka" not in served.addresses
            assert send_metrics(EXPORTERS["http"](served.addresses["otlp-http"], {}), {"client_id": "app"})

            limits = "SELECT DISTINCT value FROM headroom.quota_limits WHERE cluster = 'seen' AND user = 'observed'"
            assert eventually(lambda: rows(served.sql, limits), bool) == [(640_000.0,)]
            usage = (
                "SELECT DISTINCT source, rate, limit FROM headroom.quota_usage WHERE limit_known AND user = 'observed'"
            )
            assert eventually(lambda: rows(served.sql, usage), bool) == [("jmx", 512_000.0, 640_000.0)]
            pushes = "SELECT client_id, points FROM headroom.pushes WHERE cluster = 'seen'"
            assert eventually(lambda: rows(served.sql, pushes), bool) == [("app", 3)]
            assert served.ready()[0] == 200
            (shown, *_) = eventually(lambda: ask(served.http, "/api/v1/headroom", {"cluster": "seen"}), bool)
            assert (shown["source"], shown["user"]) == ("jmx", "observed")
    assert "observing the cluster" in served.log.read_text()
