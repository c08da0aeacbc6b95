"""The manifests for the Spark operator: fields and types of its v1beta2 API, parts of pods as Kubernetes has them.

The schema is ours: the fields that the manifests use, with types, enumerations and bounds of the operator's Go types
from which its definitions are generated (api/v1beta2/sparkapplication_types.go of kubeflow/spark-operator). Fields
that are not listed here are refused.
"""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.kit.helm_chart import EVERYTHING, container_of, job_of, merged, rendered

FILE = Path(__file__).parents[2] / "deploy" / "spark" / "sparkapplication.yaml"
TEXT, COUNT, TEXTS = (
    {"type": "string"},
    {"type": "integer", "minimum": 1},
    {"type": "array", "items": {"type": "string"}},
)
MEMORY = {"type": "string", "pattern": "^[0-9]+[kmgt]?$"}  # as a JVM takes it
KUBERNETES = "1.34"


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


POD = {
    "cores": COUNT,
    "memory": MEMORY,
    "serviceAccount": TEXT,
    "envSecretKeyRefs": {"type": "object", "additionalProperties": closed(["name", "key"], name=TEXT, key=TEXT)},
    # As in a pod, see below.
    **{key: {"type": "array"} for key in ("env", "envFrom", "tolerations", "volumeMounts")},
    **{key: {"type": "object", "additionalProperties": TEXT} for key in ("annotations", "labels", "nodeSelector")},
    **{key: {"type": "object"} for key in ("podSecurityContext", "securityContext")},
}
TEMPLATE = closed(
    ["driver", "executor", "mainApplicationFile", "sparkVersion", "type"],
    type={"enum": ["Java", "Python", "Scala", "R"]},
    mode={"enum": ["cluster", "client"]},
    pythonVersion={"enum": ["2", "3"]},
    image=TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    imagePullSecrets=TEXTS,
    mainApplicationFile=TEXT,
    arguments=TEXTS,
    sparkVersion=TEXT,
    sparkConf={"type": "object", "additionalProperties": TEXT},
    volumes={"type": "array"},  # as in a pod, see below
    restartPolicy=closed([], type={"enum": ["Never", "OnFailure", "Always"]}),
    driver=closed([], **POD),
    executor=closed([], **POD, instances=COUNT),
)
SCHEDULED = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "sparkoperator.k8s.io/v1beta2"},
    kind={"const": "ScheduledSparkApplication"},
    metadata=closed(["name"], name=TEXT, labels={"type": "object", "additionalProperties": TEXT}),
    spec=closed(
        ["schedule", "template"],
        schedule=TEXT,
        concurrencyPolicy={"enum": ["Allow", "Forbid", "Replace"]},
        template=TEMPLATE,
    ),
)


STORE: dict[str, Any] = {
    "config": {"clickhouse_tls": {"ca": "/etc/store/ca.crt"}},
    "extraEnvFrom": [{"configMapRef": {"name": "proxy"}}],
    "extraVolumes": [{"name": "store-ca", "secret": {"secretName": "store-ca"}}],
    "extraVolumeMounts": [{"name": "store-ca", "mountPath": "/etc/store"}],
}


def of_the_chart() -> dict[str, Any]:
    [found] = [it for (kind, _), it in rendered(EVERYTHING, STORE).items() if kind == "ScheduledSparkApplication"]
    return dict(found)


def of_the_file() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text()))


@pytest.mark.parametrize("manifest", [of_the_file, of_the_chart])
def test_manifest_matches_the_operator_api(manifest: Any) -> None:
    found = manifest()
    jsonschema.Draft202012Validator(SCHEDULED).validate(found)
    for role in ("driver", "executor"):
        part = found["spec"]["template"][role]
        of_container = {
            name: part[name] for name in ("env", "envFrom", "securityContext", "volumeMounts") if name in part
        }
        spec = {name: part[name] for name in ("nodeSelector", "tolerations") if name in part} | {
            "securityContext": part["podSecurityContext"],
            "containers": [{"name": role, "image": "headroom"} | of_container],
            "volumes": found["spec"]["template"].get("volumes", []),
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role}, "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize("manifest", [of_the_file, of_the_chart])
def test_pods_are_accepted_where_the_restricted_standard_is_enforced(manifest: Any) -> None:
    template = manifest()["spec"]["template"]
    for role in ("driver", "executor"):
        pod, container = template[role]["podSecurityContext"], template[role]["securityContext"]
        assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        assert container["allowPrivilegeEscalation"] is False
        assert container["capabilities"] == {"drop": ["ALL"]}


def test_account_of_the_driver_exists() -> None:
    application = of_the_file()
    account, role, binding = yaml.safe_load_all((FILE.parent / "account.yaml").read_text())
    for manifest in (account, role, binding):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    name = application["spec"]["template"]["driver"]["serviceAccount"]
    assert account["metadata"]["name"] == name
    assert [(one["kind"], one["name"]) for one in binding["subjects"]] == [("ServiceAccount", name)]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_pods_of_spark_submit_are_those_of_the_operator() -> None:
    template = yaml.safe_load((FILE.parent / "pod-template.yaml").read_text())
    kubernetes_validate.validate(
        {**template, "metadata": {"name": "spark"}}
        | {
            "spec": merged(
                template["spec"], {"containers": [{**template["spec"]["containers"][0], "image": "headroom"}]}
            )
        },
        KUBERNETES,
        strict=True,
    )
    [container] = template["spec"]["containers"]
    driver = of_the_file()["spec"]["template"]["driver"]
    assert template["spec"]["securityContext"] == driver["podSecurityContext"]
    assert container["securityContext"] == driver["securityContext"]
    assert container["volumeMounts"] == driver["volumeMounts"]


def test_read_only_pods_mount_a_writable_tmp() -> None:
    """Spark's driver creates the directory of its catalogue, and Java files below /tmp."""
    template = of_the_chart()["spec"]["template"]
    assert template["sparkConf"]["spark.sql.warehouse.dir"].startswith("file:///tmp/")
    assert template["imagePullSecrets"] == ["pull"]
    volume, _ = template["volumes"]
    for role in ("driver", "executor"):
        assert template[role]["securityContext"]["readOnlyRootFilesystem"]
        assert template[role]["volumeMounts"][0] == {"name": volume["name"], "mountPath": "/tmp"}


def test_both_kinds_of_the_job_reach_the_store_as_the_gateways_do() -> None:
    local = job_of(rendered(EVERYTHING, STORE, {"jobs": {"quotaHeadroom": {"mode": "local"}}}))
    template = of_the_chart()["spec"]["template"]
    for part, pod in (
        (container_of(local), local),
        (template["driver"], template | template["driver"]),
        (template["executor"], template | template["executor"]),
    ):
        assert {"name": "HEADROOM_CLICKHOUSE_TLS__CA", "value": "/etc/store/ca.crt"} in part["env"]
        assert part["envFrom"] == STORE["extraEnvFrom"]
        assert STORE["extraVolumeMounts"][0] in part["volumeMounts"]
        assert STORE["extraVolumes"][0] in pod["volumes"]
        assert (pod["nodeSelector"], pod["tolerations"]) == (EVERYTHING["nodeSelector"], EVERYTHING["tolerations"])
