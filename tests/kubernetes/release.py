"""The release that most checks look at: two gateways, a ClickHouse elsewhere, a node port, OTLP, the CronJob."""

import time
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.images import TAG
from tests.kubernetes.load import Traffic
from tests.kubernetes.rig import (
    BROKER_ID,
    CHART,
    NAMESPACE,
    NODE_IP,
    Outside,
    create_namespace,
    helm,
    kubectl,
    wait_ready,
)

OUTSIDE_PORT = 30192
PASSWORD_SECRET = "clickhouse"
JOB_IMAGE = {"repository": "localhost/headroom", "tag": TAG}
STORE_URL = "http://headroom_writer@clickhouse.store:8123/headroom"
VALUES: dict[str, Any] = {
    "image": {"repository": "localhost/headroom-gateway", "tag": TAG},
    "kafka": {"upstream": "broker-0.kafka:9092", "brokerIds": [BROKER_ID]},
    "clickhouse": {"url": STORE_URL, "passwordSecret": PASSWORD_SECRET},
    "listeners": [
        {
            "name": "outside",
            "port": 9192,
            "serviceType": "NodePort",
            "nodePort": OUTSIDE_PORT,
            "advertisedHost": NODE_IP,
        }
    ],
    "config": {"otlp": {"http": "0.0.0.0:4318"}},
    "jobs": {"quotaHeadroom": {"image": JOB_IMAGE, "schedule": "0 0 1 1 *"}},  # a check starts it
}


@dataclass
class Release:
    """Where it is, and who uses it."""

    outside: Outside
    away_s: float
    traffic: Traffic | None = None  # once it is installed
    bootstrap: str = f"headroom.{NAMESPACE}.svc:9092"
    telemetry: str = f"headroom-telemetry.{NAMESPACE}.svc"


def create_secret(namespace: str, outside: Outside) -> None:
    """The store's password, where the release looks for it."""
    assert outside.store is not None
    literal = f"--from-literal=password={outside.store.writer.password}"
    kubectl("-n", namespace, "create", "secret", "generic", PASSWORD_SECRET, literal)


def install(release: Release) -> str:
    """Two gateways in a namespace that enforces the `restricted` standard. From here on there is traffic."""
    create_namespace(NAMESPACE)
    create_secret(NAMESPACE, release.outside)
    began = time.monotonic()
    helm("install", "headroom", CHART, "-n", NAMESPACE, values=VALUES)
    wait_ready(NAMESPACE)
    took = time.monotonic() - began
    address = kubectl("-n", NAMESPACE, "get", "service", "headroom", "-o", "jsonpath={.spec.clusterIP}")
    release.traffic = Traffic(address, 9092)
    release.traffic.start()
    return f"2 gateways ready in {took:.0f} s"
