"""The Helm chart, rendered by Helm's own library: manifests and values match their schemas."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest

from tests.kit.helm_chart import CHART, EVERYTHING, LEAST, config_of, container_of, job_of, pod_of, rendered, validate

KUBERNETES = ("1.27", "1.34")


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["least", "everything"])
def test_manifests_match_the_kubernetes_schema(values: dict[str, Any], version: str) -> None:
    manifests = rendered(values)
    assert len(manifests) >= 7
    validate(manifests, version)


def test_lint_reports_no_errors() -> None:
    found = helm_python.lint(CHART, values=LEAST)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_rendered_configuration_is_accepted_by_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the variables of the container, which have the values of Kubernetes and of secrets."""
    for values in ({}, EVERYTHING):
        manifests = rendered(values)
        for variable in container_of(pod_of(manifests))["env"]:
            monkeypatch.setenv(variable["name"], variable.get("value", f"of-{variable['name']}"))
        config = config_of(manifests, tmp_path)
        assert (config.listen.port, config.http.port, str(config.data)) == (9092, 9644, "/var/lib/headroom")
        assert config.gateway.id == "of-HEADROOM_GATEWAY__ID"
    assert config.web.token is not None
    assert config.web.token.get_secret_value() == "of-HEADROOM_WEB__TOKEN"
    assert config.quotas.metrics.enabled
    assert config.telemetry.max_instances == 200_000
    assert config.gateway.advertised_host == "kafka.example"
    assert {"prod-headroom", "prod-headroom-pods.kafka.svc.cluster.local"} <= set(config.web.host_names)


def test_jobs_read_from_the_first_cluster_node(tmp_path: Path) -> None:
    urls = "https://headroom@ch-0/path/headroom, https://headroom@ch-1/path/headroom"
    manifests = rendered({"clickhouse": {"url": urls, "cluster": "metrics", "quorum": "auto"}})
    config = config_of(manifests, tmp_path)
    assert (config.clickhouse, config.store.cluster.name, config.store.cluster.quorum) == (urls, "metrics", "auto")
    assert "--url=https://headroom@ch-0/path/headroom" in container_of(job_of(manifests))["args"]


def test_pods_are_confined_and_have_a_persistent_spool() -> None:
    gateway = rendered(EVERYTHING)["StatefulSet", "prod-headroom"]["spec"]
    pod = gateway["template"]["spec"]
    container = container_of(pod)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert gateway["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/var/lib/headroom", "/tmp"}


def test_only_kafka_decides_whether_a_pod_is_in_service() -> None:
    container = container_of(pod_of(rendered()))
    probes = {name: probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz/kafka"}
    budget = rendered()["PodDisruptionBudget", "prod-headroom"]["spec"]
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"  # Kafka away keeps no node from being drained


def test_service_has_a_port_per_broker() -> None:
    service = rendered(EVERYTHING)["Service", "prod-headroom"]["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == {
        "bootstrap": 9092,
        "broker-1": 9094,
        "broker-2": 9095,
        "broker-3": 9096,
    }


def test_brokers_with_tls_server_names_share_the_port(tmp_path: Path) -> None:
    names = {
        "listener": {"brokerNames": "broker-{id}.gw.example:443", "port": 60_000},
        "kafka": {"brokerIds": [30_000]},
    }
    manifests = rendered(EVERYTHING, names)
    service = manifests["Service", "prod-headroom"]["spec"]
    assert [port["name"] for port in service["ports"]] == ["bootstrap"]
    assert [port["name"] for port in container_of(pod_of(manifests))["ports"]] == ["bootstrap", "http"]
    policy = manifests["NetworkPolicy", "prod-headroom"]["spec"]["ingress"][0]
    assert policy["ports"] == [{"port": "bootstrap"}]
    tls = {"security_protocol": "SASL_SSL", "tls_certificate": "tls.crt", "tls_key": "tls.key"}  # as the flags set them
    assert config_of(manifests, tmp_path, listener=tls).listener.broker_names == "broker-{id}.gw.example:443"


def test_alert_rules_are_a_copy_and_no_link(tmp_path: Path) -> None:
    """Flux leaves a symbolic link out, and Git on Windows writes its target's path in its place."""
    rules = CHART / "files" / "headroom.rules.yml"
    assert not rules.is_symlink()
    assert rules.read_text() == (CHART.parents[1] / "prometheus" / rules.name).read_text()
    copy = shutil.copytree(CHART, tmp_path / "headroom")
    for text in ("", "../../../prometheus/headroom.rules.yml"):
        (copy / "files" / rules.name).write_text(text)
        with helm_python.Chart.load(copy) as without, pytest.raises(helm_python.HelmError, match="has no rules"):
            rendered({"prometheusRule": {"enabled": True}}, of=without)


SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def parts(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part of the schema that has named values, with its place."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield place, schema
        for name, inner in schema.items():
            yield from parts(inner, f"{place}/{name}")


def test_each_part_of_the_schema_says_a_type_of_each_value_and_refuses_others() -> None:
    """Except `config`, which `headroom serve` checks, and variables, which Kubernetes does."""
    of_others = ("/properties/config", "/properties/extraEnv")
    for place, part in parts(SCHEMA):
        assert part.get("additionalProperties") is False or place.startswith(of_others), place
        for name, value in part["properties"].items():
            assert {"type", "$ref", "enum", "oneOf"} & value.keys(), f"{place}/{name}"


def test_value_that_is_left_empty_is_refused_by_name() -> None:
    """Helm takes a default away where a file has the name alone."""
    needed = [[name] for name in SCHEMA["required"]]
    for name, schema in SCHEMA["properties"].items():
        needed += [[name, inner] for inner in schema.get("required", ())]
    for path in needed:
        values: Any = None
        for name in reversed(path):
            values = {name: values}
        with pytest.raises(helm_python.HelmError, match=path[-1]):
            rendered(values)


DEFINITIONS = Path(__file__).with_name("crds")
PLURAL = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}


def closed(schema: Any) -> Any:
    """The schema with fields that it does not know refused, as `kubectl apply --validate=strict` does."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: closed(part) for name, part in schema.items()}
    opened = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & result.keys()
    if isinstance(result.get("properties"), dict) and result.get("type") == "object" and not opened:
        result["additionalProperties"] = False
    return result


@pytest.mark.parametrize("kind", PLURAL)
def test_manifest_matches_the_operator_definition(kind: str) -> None:
    read: dict[str, Any] = json.loads((DEFINITIONS / f"{PLURAL[kind]}.json").read_text())
    schema = closed(read["schema"])
    schema["properties"]["apiVersion"]["const"] = f"{read['group']}/{read['version']}"
    schema["properties"]["kind"]["const"] = read["kind"]
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    jsonschema.Draft202012Validator(schema).validate(rendered(EVERYTHING)[kind, "prod-headroom"])
