"""Checks: the least values, a page by port-forward, an arbitrary user id, IPv6 pods, dry runs, and the end."""

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import yaml

from headroom.demo.processes import start, stop
from tests.chaos.wire import WireClient
from tests.kubernetes.images import TAG
from tests.kubernetes.jobs import run_cron_job
from tests.kubernetes.release import JOB_IMAGE, VALUES, Release, create_secret
from tests.kubernetes.rig import (
    BROKER_ID,
    CHART,
    NAMESPACE,
    NODE_IP6,
    ROOT,
    STATE,
    CheckError,
    create_namespace,
    helm,
    kubectl,
    until,
    wait_ready,
)

PAGES_PORT = 9644
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, whatever the environment
VERSION = "1.34.4"  # helm does not ask the cluster when it renders
ANY_USER = 1000680000  # as OpenShift chooses one
EXAMPLES = ROOT / "deploy" / "helm" / "examples"
ONE_NODE: dict[str, Any] = {
    **yaml.safe_load((EXAMPLES / "one-node.yaml").read_text()),
    "image": {"repository": "localhost/headroom", "tag": TAG},
    "kafka": {"upstream": "broker-0.kafka:9092", "brokerIds": [BROKER_ID]},
}


@contextlib.contextmanager
def installed(namespace: str, values: dict[str, Any]) -> Iterator[float]:
    """A release in a namespace of its own until the block ends; yields seconds until it was ready."""
    began = time.monotonic()
    helm("install", "headroom", CHART, "-n", namespace, values=values)
    try:
        wait_ready(namespace)
        yield time.monotonic() - began
    finally:
        helm("uninstall", "headroom", "-n", namespace, "--wait")
        kubectl("delete", "namespace", namespace, "--timeout=120s")


@contextlib.contextmanager
def forwarded(namespace: str, port: int) -> Iterator[str]:
    """`kubectl port-forward` to the first pod; yields the URL."""
    command = ["kubectl", "-n", namespace, "port-forward", "pod/headroom-0", str(port)]
    process = start([shutil.which(command[0]) or "", *command[1:]], stderr=subprocess.DEVNULL)
    try:
        yield f"http://localhost:{port}"
    finally:
        stop(process)


def page(namespace: str) -> str:
    """The title of the page, which a browser would see with the token of the secret."""
    token = kubectl("-n", namespace, "get", "secret", "headroom-pages", "-o", "jsonpath={.data.token}")
    password = base64.b64decode(token).decode()
    basic = base64.b64encode(f"any:{password}".encode()).decode()
    with forwarded(namespace, PAGES_PORT) as url:
        request = urllib.request.Request(f"{url}/", headers={"Authorization": f"Basic {basic}"})

        def fetched() -> str:
            with (
                contextlib.suppress(ConnectionError, urllib.error.URLError),
                _DIRECT.open(request, timeout=10) as answer,
            ):
                return str(answer.read().decode())
            return ""

        text = until(30, fetched, f"{url} answers")
    if "<title>" not in text:
        raise CheckError(f"no page at {url}: {text[:200]}")
    return text.partition("<title>")[2].partition("</title>")[0].strip()


def least_values(release: Release) -> str:
    """One gateway with a ClickHouse in its pod, as in the first hour of docs/kubernetes.md."""
    create_namespace("least")
    with installed("least", ONE_NODE) as took:
        return f"ready in {took:.0f} s; the page by port-forward is {page('least')!r}"


def any_user(release: Release) -> str:
    """Gateway and job with the ids that OpenShift gives: a user without a name, of group 0."""
    create_namespace("any-user")
    create_secret("any-user", release.outside)
    security = {"runAsUser": ANY_USER, "runAsGroup": 0, "fsGroup": ANY_USER}
    values = {
        "replicas": 1,
        "image": JOB_IMAGE,
        "kafka": {"upstream": "broker-0.kafka:9092", "brokerIds": [BROKER_ID]},
        "clickhouse": VALUES["clickhouse"],
        "podSecurityContext": security,
        "jobs": VALUES["jobs"],
    }
    with installed("any-user", values) as took:
        user = kubectl("-n", "any-user", "exec", "headroom-0", "--", "id", "-u")
        if user != str(ANY_USER):
            raise CheckError(f"the gateway runs as {user}")
        return f"as {user} the gateway is ready in {took:.0f} s; the job: {run_cron_job('any-user')}"


def ipv6_pods(release: Release) -> str:
    """Pods with an IPv6 address alone, in a service of IPv6, with a broker that is reached by IPv6."""
    second = STATE / "cni" / "00-ipv6.conflist"
    shutil.copy(STATE / "ipv6.conflist", second)
    create_namespace("six")
    upstream = {"upstream": f"[{NODE_IP6}]:9096", "brokerIds": [BROKER_ID]}
    values = {**ONE_NODE, "kafka": upstream, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}
    try:
        with installed("six", values) as took:
            pod = json.loads(kubectl("-n", "six", "get", "pod", "headroom-0", "-o", "json"))
            addresses = [entry["ip"] for entry in pod["status"]["podIPs"]]
            service = kubectl("-n", "six", "get", "service", "headroom", "-o", "jsonpath={.spec.clusterIP}")
            by_service = served(service)
    finally:
        second.unlink()
    if not all(":" in address for address in addresses):
        raise CheckError(f"the pod has {addresses}")
    return f"pod {addresses[0]} ready in {took:.0f} s; a client is served at [{service}] in {by_service:.2f} s"


def served(host: str) -> float:
    """Seconds until a client has its subscription."""

    async def ask() -> None:
        client = await WireClient.connect(host, 9092, "six", "::")
        await client.subscription(bytes(16))
        client.close()

    began = time.monotonic()
    asyncio.run(asyncio.wait_for(ask(), 30))
    return time.monotonic() - began


def dry_runs(release: Release) -> str:
    """`helm lint` of the five examples, and the API server's word on their objects in a `restricted` namespace."""
    for file in sorted((ROOT / "tests" / "deploy" / "crds").glob("*.json")):
        resource = json.loads(file.read_text())
        kind = resource["kind"]
        names = {"kind": kind, "singular": kind.lower(), "plural": f"{kind.lower()}s"}
        version = {"name": resource["version"], "served": True, "storage": True}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{names['plural']}.{resource['group']}"},
            "spec": {
                "group": resource["group"],
                "scope": "Namespaced",
                "names": names,
                "versions": [version | {"schema": {"openAPIV3Schema": resource["schema"]}}],
            },
        }
        kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(definition))
        kubectl("wait", "--for=condition=Established", f"crd/{file.stem}.monitoring.coreos.com", "--timeout=30s")
    create_namespace("dry")
    strictly = ["--dry-run=server", "--warnings-as-errors", "-o", "name", "-f", "-"]
    counts = {}
    for example in sorted(EXAMPLES.glob("*.yaml")):
        helm("lint", "--strict", CHART, "-f", example, "--kube-version", VERSION)
        manifests = helm("template", "dry", CHART, "-n", "dry", "-f", example, "--kube-version", VERSION)
        accepted = kubectl("-n", "dry", "apply", *strictly, stdin=manifests)
        counts[example.stem] = len(accepted.splitlines())
    kubectl("delete", "namespace", "dry")
    return ", ".join(f"{name} {count} objects" for name, count in counts.items())


def uninstall(release: Release) -> str:
    """What is left is what was made by hand, and volume claims, which keep the spool."""
    if release.traffic is not None:
        release.traffic.stop()
        release.traffic = None
    began = time.monotonic()
    helm("uninstall", "headroom", "-n", NAMESPACE, "--wait")
    kinds = "statefulset,pod,service,configmap,secret,serviceaccount,networkpolicy,poddisruptionbudget,cronjob,job,pvc"
    listed = ["-l", "app.kubernetes.io/instance=headroom", "-o", "name"]

    def left() -> list[str]:
        return kubectl("-n", NAMESPACE, "get", kinds, *listed).splitlines()

    until(90, lambda: all(name.startswith("persistentvolumeclaim/") for name in left()), "only volume claims are left")
    return f"{time.monotonic() - began:.0f} s; left are {len(left())} volume claims with the spools"
