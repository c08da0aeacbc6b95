"""The Helm chart, its values and its manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "headroom"
LEAST: dict[str, Any] = {
    "kafka": {"upstream": "broker-1:9092,broker-2:9092"},
    "clickhouse": {"url": "http://headroom@clickhouse:8123/headroom", "passwordSecret": "clickhouse"},
}
EVERYTHING: dict[str, Any] = {
    "replicas": 3,
    "kafka": {
        "upstream": "broker-1:9092",
        "clusterName": "prod",
        "brokerIds": [1, 2, 3],
        "commandConfigSecret": "kafka-client",
    },
    "listener": {
        "securityProtocol": "SASL_SSL",
        "tlsSecret": "listener-tls",
        "advertisedHost": "kafka.example",
        "serviceType": "LoadBalancer",
        "serviceAnnotations": {"a": "b"},
    },
    "clickhouse": LEAST["clickhouse"],
    "http": {"tokenSecret": "pages"},
    "spool": {"storageClass": "fast"},
    "config": {"telemetry": {"max_instances": 200000}},
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "podAnnotations": {"c": "d"},
    "priorityClassName": "high",
    "networkPolicy": {"clients": [{"podSelector": {}}], "monitoring": [{"namespaceSelector": {}}]},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "jobs": {"quotaHeadroom": {"mode": "operator"}},
}


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def rendered(chart: helm_python.Chart, values: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Manifests by kind and name. Raises HelmError."""
    texts = chart.render(values=values, name="prod", namespace="kafka")
    documents = [each for name, text in texts.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text)]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents if each}
