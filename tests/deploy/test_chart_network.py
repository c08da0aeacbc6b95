"""Who reaches a gateway of the chart, at which names and ports: services, pods, policies and settings agree. Each bad
value of the chart is refused by name."""

import base64
import json
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.kit.helm_chart import CHART, config_of, container_of, job_of, pod_of, rendered, texts, validate

EXAMPLES = sorted((CHART.parent / "examples").glob("*.yaml"))
OUTSIDE = {"name": "outside", "port": 9192}
TLS = {"securityProtocol": "SSL", "tlsSecret": "tls"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_is_valid_and_its_settings_are_accepted(file: Path, tmp_path: Path) -> None:
    manifests = rendered(yaml.safe_load(file.read_text()))
    validate(manifests)
    config = config_of(manifests, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in container_of(pod_of(manifests))["ports"]}
    listening = [config.listen, config.http, *(one.listen for one in config.listeners)]
    assert {address.port for address in listening} <= set(ports.values())
    policy = manifests["NetworkPolicy", "prod-headroom"]["spec"]["ingress"]
    assert {one["port"] for rule in policy for one in rule["ports"]} == set(ports)
    led_to = {
        one["targetPort"] for (kind, _), it in manifests.items() if kind == "Service" for one in it["spec"]["ports"]
    }
    assert led_to == set(ports)


def test_node_ports_are_the_advertised_ones(tmp_path: Path) -> None:
    node_port = {**OUTSIDE, "serviceType": "NodePort", "nodePort": 31092, "advertisedHost": "node.example"}
    manifests = rendered({"kafka": {"brokerIds": [0, 7]}, "listeners": [node_port]})
    service = manifests["Service", "prod-headroom-outside"]["spec"]
    assert service["type"] == "NodePort"
    assert {one["name"]: (one["port"], one["nodePort"]) for one in service["ports"]} == {
        "outside": (9192, 31092),
        "outside-0": (9193, 31093),
        "outside-7": (9200, 31100),
    }
    config = config_of(manifests, tmp_path)
    assert (config.gateway.advertised_host, config.listener.advertised_port) == ("prod-headroom.kafka.svc", None)
    [outside] = config.listeners
    assert (outside.listen.port, outside.advertised_host, outside.advertised_port) == (9192, "node.example", 31092)


def test_first_listener_has_node_ports_too(tmp_path: Path) -> None:
    listener = {"serviceType": "NodePort", "nodePort": 31000, "advertisedHost": "10.0.0.1"}
    manifests = rendered({"listener": listener})
    assert [one["nodePort"] for one in manifests["Service", "prod-headroom"]["spec"]["ports"]] == [
        31000, 31001, 31002, 31003,
    ]  # fmt: skip
    assert config_of(manifests, tmp_path).listener.advertised_port == 31000


@pytest.mark.parametrize(
    ("kind", "ports"), [("LoadBalancer", [19092, 19093, 19098]), ("ClusterIP", [9192, 9193, 9198])]
)
def test_load_balancer_leads_from_the_advertised_ports(tmp_path: Path, kind: str, ports: list[int]) -> None:
    """What stands before a ClusterIP service leads from them."""
    outside = {**OUTSIDE, "serviceType": kind, "advertisedHost": "kafka.example", "advertisedPort": 19092}
    manifests = rendered({"kafka": {"brokerIds": [0, 5]}, "listeners": [outside]})
    service = manifests["Service", "prod-headroom-outside"]["spec"]
    assert [one["port"] for one in service["ports"]] == ports
    assert [one["targetPort"] for one in service["ports"]] == ["outside", "outside-0", "outside-5"]
    assert config_of(manifests, tmp_path).listeners[0].advertised_port == 19092


def test_receivers_of_telemetry_have_ports_in_pod_service_and_policy() -> None:
    config = {"otlp": {"grpc": "0.0.0.0:4317", "http": "127.0.0.1:4318"}, "grpc": {"listen": "[::]:9100"}}
    peers: list[dict[str, Any]] = [{"namespaceSelector": {}}]
    manifests = rendered({"config": config, "networkPolicy": {"telemetry": peers}})
    service = manifests["Service", "prod-headroom-telemetry"]["spec"]
    assert {one["name"]: one["port"] for one in service["ports"]} == {"otlp-grpc": 4317, "grpc": 9100}
    assert {("otlp-grpc", 4317), ("grpc", 9100)} < {
        (one["name"], one["containerPort"]) for one in container_of(pod_of(manifests))["ports"]
    }
    rule = manifests["NetworkPolicy", "prod-headroom"]["spec"]["ingress"][-1]
    assert ({one["port"] for one in rule["ports"]}, rule["from"]) == ({"otlp-grpc", "grpc"}, peers)


def test_certificate_of_a_further_listener_is_mounted(tmp_path: Path) -> None:
    names = {**OUTSIDE, **TLS, "brokerNames": "broker-{id}.example:9094", "advertisedHost": "bootstrap.example"}
    manifests = rendered({"listeners": [names]})
    [outside] = config_of(manifests, tmp_path).listeners
    mounts = {one["name"]: one["mountPath"] for one in container_of(pod_of(manifests))["volumeMounts"]}
    assert outside.tls_certificate == Path(mounts["tls-outside"]) / "tls.crt"
    assert outside.broker_names == "broker-{id}.example:9094"
    assert [one["name"] for one in manifests["Service", "prod-headroom-outside"]["spec"]["ports"]] == ["outside"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kafak": {"upstream": "broker-1:9092"}}, "kafak"),
        ({"kafka": {"upstraem": "broker-1:9092"}}, "upstraem"),
        ({"replicas": "two"}, "replicas"),
        ({"replicas": 0}, "replicas"),
        ({"listener": {"port": 65_536}}, "port"),
        ({"imagePullSecrets": "pull"}, "imagePullSecrets"),
        ({"kafka": {"upstream": ""}}, "upstream"),
        ({"kafka": {"upstream": "broker-1"}}, "upstream"),
        ({"kafka": {"brokerIds": [551]}}, r"http\.port"),
        ({"kafka": {"brokerIds": [30000]}, "listener": {"port": 60000}}, "brokerIds"),
        ({"clickhouse": {"url": "clickhouse:8123"}}, "url"),
        ({"clickhouse": {"url": "http://user:secret@host:8123"}}, "url"),
        ({"clickhouse": {"url": "", "passwordSecret": ""}}, "replicas"),
        ({"clickhouse": {"url": "", "passwordSecret": ""}, "replicas": 1}, r"jobs\.quotaHeadroom"),
        ({"clickhouse": {"passwordSecret": ""}}, "passwordSecret"),
        ({"config": {"clickhouse_password_file": "/vault/password"}}, r"clickhouse\.passwordSecret: either"),
        ({"clickhouse": {"url": "http://a:8123,b:8123"}}, "url"),
        ({"clickhouse": {"cluster": "it's"}}, "cluster"),
        ({"clickhouse": {"url": "", "passwordSecret": "", "cluster": "c"}, "replicas": 1}, r"clickhouse\.cluster"),
        ({"listener": {"securityProtocol": "SSL"}}, "tlsSecret"),
        ({"listener": {"brokerNames": "broker-{id}.gw.example"}}, "brokerNames"),
        ({"listener": {"brokerNames": "gw.example", "securityProtocol": "SSL", "tlsSecret": "tls"}}, "brokerNames"),
        ({"spool": {"size": "20 GB"}}, "size"),
        ({"resources": {"requests": {"cpu": "one"}}}, "cpu"),
        ({"jobs": {"quotaHeadroom": {"schedule": "every minute"}}}, "schedule"),
        ({"jobs": {"quotaHeadroom": {"since": "a while"}}}, "since"),
        ({"serviceMonitor": {"interval": "15"}}, "interval"),
        ({"listener": {"serviceType": "NodePort", "nodePort": 31000}}, r"listener\.advertisedHost: needed"),
        ({"listener": {"serviceType": "LoadBalancer"}}, r"listener\.advertisedHost: needed"),
        ({"listener": {"serviceType": "NodePort", "advertisedHost": "n"}}, r"listener\.nodePort: needed"),
        ({"listener": {"nodePort": 31000}}, r"listener\.nodePort: only with"),
        ({"listener": {"loadBalancerClass": "x"}}, r"listener\.loadBalancerClass: only with"),
        (
            {"listeners": [{**OUTSIDE, "loadBalancerSourceRanges": ["10.0.0.0/8"]}]},
            "loadBalancerSourceRanges: only with",
        ),
        ({"listener": {"externalTrafficPolicy": "Local"}}, r"listener\.externalTrafficPolicy: only with"),
        (
            {"listeners": [{**OUTSIDE, "serviceType": "NodePort", "advertisedHost": "n"}]},
            "listeners, outside: nodePort",
        ),
        ({"listeners": [{**OUTSIDE, "securityProtocol": "SSL"}]}, "listeners, outside: tlsSecret: needed"),
        ({"listeners": [{**OUTSIDE, "brokerNames": "b-{id}.example"}]}, "listeners, outside: brokerNames"),
        ({"listeners": [{**OUTSIDE, "port": 9093}]}, "9093"),
        ({"listeners": [{**OUTSIDE, "port": 9643}]}, "9644"),
        ({"listeners": [OUTSIDE, {**OUTSIDE, "port": 9292}]}, "the name outside is taken"),
        ({"listeners": [{**OUTSIDE, "name": "pods"}]}, "the name pods is taken"),
        ({"listeners": [{**OUTSIDE, "name": "far-too-long"}]}, "name"),
        ({"listeners": [{**OUTSIDE, "name": "otlp-grpc"}]}, "the name otlp-grpc is taken"),
        ({"config": {"otlp": {"grpc": "0.0.0.0:9644"}}}, "config: otlp-grpc has the port 9644"),
        ({"config": {"otlp": "0.0.0.0:4318"}}, "/config/otlp"),
        ({"config": {"otlp": {"http": 4318}}}, "/config/otlp/http"),
        ({"config": {"otlp": {"http": "0.0.0.0"}}}, "/config/otlp/http"),
        ({"extraEnv": [{"name": "A", "value": 1}]}, "/extraEnv/0/value"),
        ({"spool": {"size": "2.5Gi"}}, r"spool\.maxBytes: 4294967296 bytes do not fit into spool\.size, 2\.5Gi"),
        ({"spool": {"size": 4294967295}}, r"spool\.maxBytes"),
        ({"image": {"repository": "r/headroom-gateway"}}, r"jobs\.quotaHeadroom\.image\.repository: needed"),
        (
            {
                "image": {"repository": "r/headroom-gateway"},
                "replicas": 1,
                "clickhouse": {"url": "", "passwordSecret": ""},
                "jobs": {"quotaHeadroom": {"enabled": False}},
            },
            "has no ClickHouse in it",
        ),
        ({"config": {"listen": "[::]:9092"}}, r"config\.listen: set the value listener\.port"),
        ({"config": {"http": "[::]:9644"}}, r"config\.http: set the value http\.port"),
        ({"config": {"listeners": []}}, r"config\.listeners: set the value listeners"),
        ({"config": {"clickhouse": "http://c"}}, r"config\.clickhouse: set the value clickhouse\.url"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        rendered(values)


def test_pages_answer_at_all_names_of_the_chart_and_further_ones() -> None:
    """As Kubernetes fills the pod's own name in: to scale restarts no pod."""
    values = {"config": {"web": {"host_names": ["pages.example"]}}}
    spec, of_three = (rendered(values, more)["StatefulSet", "prod-headroom"]["spec"] for more in ({}, {"replicas": 3}))
    assert spec["template"] == of_three["template"]
    env = {one["name"]: one.get("value", "") for one in container_of(spec["template"]["spec"])["env"]}
    names = set(json.loads(env["HEADROOM_WEB__HOST_NAMES"].replace("$(HEADROOM_GATEWAY__ID)", "prod-headroom-2")))
    assert {"pages.example", "prod-headroom", "prod-headroom.kafka.svc.cluster.local", "prod-headroom-2"} < names
    suffixes = ("", ".kafka.svc", ".kafka.svc.cluster.local")
    assert {f"prod-headroom-2.{spec['serviceName']}{suffix}" for suffix in suffixes} < names


def test_pages_have_a_token_without_any_value() -> None:
    manifests = rendered()
    token = base64.b64decode(manifests["Secret", "prod-headroom-pages"]["data"]["token"]).decode()
    assert len(token) == 32
    env = {one["name"]: one for one in container_of(pod_of(manifests))["env"]}
    assert env["HEADROOM_WEB__TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "prod-headroom-pages", "key": "token"}
    assert env["HEADROOM_HTTP_ADDRESS"]["value"] == "127.0.0.1:9644"  # of `headroom top` in the pod


@pytest.mark.parametrize(
    "values", [{"http": {"tokenSecret": "mine"}}, {"config": {"web": {"token_file": "/etc/token"}}}]
)
def test_token_of_the_user_takes_the_place_of_the_charts(values: dict[str, Any]) -> None:
    manifests = rendered(values)
    assert [name for kind, name in manifests if kind == "Secret"] == []
    secrets = [
        one["valueFrom"]["secretKeyRef"]["name"]
        for one in container_of(pod_of(manifests))["env"]
        if "TOKEN" in one["name"]
    ]
    assert secrets == (["mine"] if "http" in values else [])


@pytest.mark.parametrize(
    "values",
    [
        {"kafka": {"upstream": "[fd00::1]:9092,[fd00::2]:9092"}},
        {"clickhouse": {"url": "http://headroom@[fd00::3]:8123/headroom"}},
        {"listener": {"advertisedHost": "fd00::4"}},
        {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]},
    ],
)
def test_ipv6_is_accepted(values: dict[str, Any], tmp_path: Path) -> None:
    manifests = rendered(values)
    config = config_of(manifests, tmp_path)
    assert config.upstream[0].host in ("fd00::1", "broker-1")
    validate(manifests)
    for (kind, _), manifest in manifests.items():
        if kind == "Service":
            assert manifest["spec"].get("ipFamilies") == values.get("ipFamilies")


def test_openshift_chooses_the_ids() -> None:
    manifests = rendered({"openshift": True})
    for pod in (pod_of(manifests), job_of(manifests)):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"])
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_values_as_kubernetes_prometheus_and_kafka_write_them() -> None:
    resources = {"requests": {"cpu": 0, "memory": "1e9"}, "limits": {"cpu": 0.5, "memory": 1073741824}}
    values = {"kafka": {"upstream": "a:9092, b:9092"}, "serviceMonitor": {"enabled": True, "interval": "1m30s"}}
    for size, schedule in ((1e10, "@hourly"), ("1e10", "0 * * * *")):
        of_time = {"spool": {"size": size}, "jobs": {"quotaHeadroom": {"schedule": schedule}}}
        manifests = rendered({"resources": resources}, values, of_time)
        assert container_of(pod_of(manifests))["resources"]["requests"] == {"cpu": 0, "memory": "1e9"}


def test_what_charts_of_the_field_have() -> None:
    values = {
        "enabled": True,  # as the condition of a parent chart hands it down
        "extraEnv": [{"name": "HEADROOM_LOG_LEVEL", "value": "debug"}],
        "extraEnvFrom": [{"secretRef": {"name": "more"}}],
        "extraVolumes": [{"name": "owners", "configMap": {"name": "owners"}}],
        "extraVolumeMounts": [{"name": "owners", "mountPath": "/etc/owners"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "podLabels": {"team": "kafka"},
        "serviceAccount": {"create": False, "name": "mine"},
        "jobs": {"quotaHeadroom": {"image": {"repository": "registry.example/headroom-jobs"}}},
    }
    manifests = rendered(values)
    template = manifests["StatefulSet", "prod-headroom"]["spec"]["template"]
    validate(manifests)
    assert template["metadata"]["labels"]["team"] == "kafka"
    assert template["spec"]["affinity"] == {"nodeAffinity": {}}
    assert [one["maxSkew"] for one in template["spec"]["topologySpreadConstraints"]] == [2]
    assert template["spec"]["serviceAccountName"] == "mine"
    assert ("ServiceAccount", "mine") not in manifests
    assert {"owners"} < {one["name"] for one in template["spec"]["volumes"]}
    job = container_of(job_of(manifests))
    assert job["image"] == "registry.example/headroom-jobs:0.1.0"
    assert job["envFrom"] == values["extraEnvFrom"]


def test_pods_of_the_job_have_the_common_labels_and_annotations_below_their_own() -> None:
    common = {"podLabels": {"team": "a", "mesh": "on"}, "podAnnotations": {"note": "a"}, "priorityClassName": "high"}
    own = {"podLabels": {"mesh": "off"}, "podAnnotations": {"note": "b"}}
    local, operator = (
        rendered(common, {"jobs": {"quotaHeadroom": own | {"mode": mode}}}) for mode in ("local", "operator")
    )
    assert job_of(local)["priorityClassName"] == "high"
    spark = operator["ScheduledSparkApplication", "prod-headroom-quota"]["spec"]["template"]
    pod = local["CronJob", "prod-headroom-quota"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]
    for metadata in (pod, spark["driver"], spark["executor"]):
        assert {"team": "a", "mesh": "off"}.items() < metadata["labels"].items()
        assert metadata["annotations"] == {"note": "b"}


def test_names_fit_whatever_the_release_is_called() -> None:
    """A CronJob's name has at most 52 characters."""
    release = "a-team-in-production-with-a-release-name-of-all-53-ch"
    [job] = [yaml.safe_load(text) for name, text in texts(release=release).items() if name.endswith("job.yaml")]
    assert len(job["metadata"]["name"]) == 52
    kinds = {kind for kind, name in rendered({"fullnameOverride": "mine"}) if name == "mine"}
    assert {"StatefulSet", "Service", "ConfigMap"} < kinds


def test_pods_have_the_default_account_without_one_of_the_charts() -> None:
    manifests = rendered({"serviceAccount": {"create": False}})
    assert pod_of(manifests)["serviceAccountName"] == "default"


def test_digest_pins_the_image_that_it_belongs_to() -> None:
    gateway, jobs = f"sha256:{'a' * 64}", {"image": {"repository": "registry.example/jobs", "tag": "7"}}
    values = {"image": {"repository": "registry.example/gateway", "digest": gateway}, "jobs": {"quotaHeadroom": jobs}}
    manifests = rendered(values)
    assert container_of(pod_of(manifests))["image"] == f"registry.example/gateway:0.1.0@{gateway}"
    assert container_of(job_of(manifests))["image"] == "registry.example/jobs:7"


def test_registry_and_pull_secrets_of_a_parent_chart_are_used() -> None:
    values = {"global": {"imageRegistry": "r.example:5000", "imagePullSecrets": ["all", {"name": "more"}, "mine"]}}
    of_its_own = {"imagePullSecrets": [{"name": "mine"}], "image": {"repository": "registry.example/headroom"}}
    manifests = rendered(values, of_its_own)
    for pod in (pod_of(manifests), job_of(manifests)):
        assert pod["imagePullSecrets"] == [{"name": "mine"}, {"name": "all"}, {"name": "more"}]
        assert container_of(pod)["image"] == "r.example:5000/headroom:0.1.0"


@pytest.mark.parametrize(("values", "key"), [({}, "password"), ({"passwordSecretKey": "mine"}, "mine")])
def test_password_is_of_any_key_in_its_secret(values: dict[str, Any], key: str) -> None:
    manifests = rendered({"clickhouse": values})
    [password] = [
        one for one in container_of(pod_of(manifests))["env"] if one["name"] == "HEADROOM_CLICKHOUSE_PASSWORD"
    ]
    assert password["valueFrom"] == {"secretKeyRef": {"name": "clickhouse", "key": key}}


@pytest.mark.parametrize(
    ("login", "variable"),
    [
        ({"clickhouse_password_file": "/p"}, "PASSWORD_FILE"),
        ({"clickhouse_tls": {"certificate": "/c"}}, "TLS__CERTIFICATE"),
    ],
)
def test_login_by_a_file_needs_no_secret(login: dict[str, Any], variable: str) -> None:
    manifests = rendered({"clickhouse": {"passwordSecret": ""}, "config": login})
    assert [one["name"] for one in container_of(job_of(manifests))["env"]] == [f"HEADROOM_CLICKHOUSE_{variable}"]


def test_monitors_have_the_labels_by_which_prometheus_selects() -> None:
    on = {"enabled": True, "labels": {"release": "kube-prometheus-stack"}, "namespace": "monitoring"}
    manifests = rendered({"serviceMonitor": on, "prometheusRule": on})
    for kind in ("ServiceMonitor", "PrometheusRule"):
        metadata = manifests[kind, "prod-headroom"]["metadata"]
        assert metadata["labels"]["release"] == "kube-prometheus-stack"
        assert metadata["namespace"] == "monitoring"
    assert manifests["ServiceMonitor", "prod-headroom"]["spec"]["namespaceSelector"] == {"matchNames": ["kafka"]}


def test_alerts_have_labels_and_addresses_of_the_values() -> None:
    values = {
        "ruleLabels": {"namespace": "kafka"},
        "runbookUrl": "https://git.example/",
        "pagesUrl": "https://h.example",
    }
    spec = rendered({"prometheusRule": values | {"enabled": True}})["PrometheusRule", "prod-headroom"]["spec"]
    for alert in (rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule):
        assert (alert["labels"]["namespace"], "severity" in alert["labels"]) == ("kafka", True)
        assert alert["annotations"]["runbook_url"] == f"https://git.example/docs/runbooks/{alert['alert']}.md"
        assert alert["annotations"].get("dashboard_url", "https://h.example/").startswith("https://h.example/")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "get secret prod-headroom-pages -o jsonpath"),
        ({}, "bootstrap.servers=prod-headroom.kafka.svc:9092"),
        ({}, "serviceMonitor.labels.release=NAME"),
        ({"serviceMonitor": {"enabled": True}}, "NOT SET here"),
        ({"listeners": [{**OUTSIDE, "advertisedHost": "out.example"}]}, "outside: bootstrap.servers=out.example:9192"),
        ({"listeners": [{**OUTSIDE, "advertisedHost": "fd00::8"}]}, "outside: bootstrap.servers=[fd00::8]:9192"),
        ({"config": {"otlp": {"grpc": "0.0.0.0:4317"}}}, "otlp-grpc: prod-headroom-telemetry.kafka.svc:4317"),
    ],
)
def test_notes_are_the_first_hour(values: dict[str, Any], said: str) -> None:
    [notes] = [text for name, text in texts(values).items() if name.endswith("NOTES.txt")]
    assert said in notes
    assert "kubectl -n kafka exec -it prod-headroom-0 -c headroom -- headroom top" in notes
