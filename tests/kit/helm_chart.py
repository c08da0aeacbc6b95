"""The Helm chart, its values and its manifests."""

import functools
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

from headroom.config.settings import ServeConfig
from headroom.config.sources import load

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "headroom"
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScheduledSparkApplication"}  # not of Kubernetes itself
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


@functools.cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART).__enter__()


def texts(*layers: dict[str, Any], of: helm_python.Chart | None = None, release: str = "prod") -> dict[str, str]:
    """What the templates of the chart render with these values over LEAST, by file. Raises HelmError."""
    return dict((of or chart()).render(values=merged(LEAST, *layers), name=release, namespace="kafka"))


def rendered(*layers: dict[str, Any], of: helm_python.Chart | None = None) -> dict[tuple[str, str], Any]:
    """Manifests by kind and name. Raises HelmError."""
    files = texts(*layers, of=of)
    documents = [each for name, text in files.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text)]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents if each}


def validate(manifests: dict[tuple[str, str], Any], version: str = "1.34") -> None:
    """Against the schema of a Kubernetes release. Raises ValidationError."""
    for (kind, _), manifest in manifests.items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


def config_of(manifests: dict[tuple[str, str], Any], directory: Path, **flags: Any) -> ServeConfig:
    """As `headroom serve` reads it; it needs the files of certificates only when it starts."""
    file = directory / "headroom.yaml"
    file.write_text(manifests["ConfigMap", "prod-headroom"]["data"]["headroom.yaml"])
    return load(file, flags)


def pod_of(manifests: dict[tuple[str, str], Any]) -> dict[str, Any]:
    return dict(manifests["StatefulSet", "prod-headroom"]["spec"]["template"]["spec"])


def job_of(manifests: dict[tuple[str, str], Any]) -> dict[str, Any]:
    return dict(manifests["CronJob", "prod-headroom-quota"]["spec"]["jobTemplate"]["spec"]["template"]["spec"])


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["containers"]
    return dict(container)
