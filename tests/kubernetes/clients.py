"""Checks: clients of Java and librdkafka inside and outside of the cluster, and OTLP from another namespace."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from headroom.demo.jars import find_java
from tests.kubernetes.release import OUTSIDE_PORT, Release
from tests.kubernetes.rig import NODE_IP, STATE, CheckError, kubectl, run, until

TOOLS = "tools"  # namespace of the pod with clients
RECORDS = 2000
TOPIC = "orders"
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "clients", "namespace": TOOLS},
    "spec": {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "clients",
                "image": "localhost/headroom:rig",
                "command": ["sleep", "100000"],
                "env": [{"name": "PYTHONPATH", "value": "/files/python"}],
                "volumeMounts": [
                    {"name": "libs", "mountPath": "/libs", "readOnly": True},
                    {"name": "files", "mountPath": "/files", "readOnly": True},
                ],
            }
        ],
    },
}
_OTLP = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=20).status)
"""


def start_pod(release: Release) -> None:
    """A pod in another namespace, with Kafka's Java clients and librdkafka."""
    files = STATE / "files"
    shutil.rmtree(files, ignore_errors=True)
    packages = Path(confluent_kafka.__file__).parents[1]
    for name in ("confluent_kafka", "confluent_kafka.libs"):
        shutil.copytree(packages / name, files / "python" / name)
    shutil.copy(Path(__file__).with_name("librdkafka.py"), files)
    (files / "log4j2.properties").write_text("rootLogger.level=ERROR\n")
    volumes = [
        {"name": "libs", "hostPath": {"path": str(release.outside.libs.absolute())}},
        {"name": "files", "hostPath": {"path": str(files)}},
    ]
    kubectl("create", "namespace", TOOLS)
    kubectl("apply", "-f", "-", stdin=json.dumps({**_POD, "spec": {**_POD["spec"], "volumes": volumes}}))  # type: ignore[dict-item]
    kubectl("-n", TOOLS, "wait", "--for=condition=Ready", "pod/clients", "--timeout=90s")


def in_pod(*argv: str, timeout_s: float = 120.0) -> str:
    return kubectl("-n", TOOLS, "exec", "clients", "--", *argv, timeout_s=timeout_s)


def by_java(call: Callable[..., str], bootstrap: str, group: str, *java: str, records: int = RECORDS) -> float:
    """Produces and consumes that many records; seconds that it took. `call`: runs a command, on the node or in the pod.
    `java`: its command line without the class."""
    began = time.monotonic()
    size = ["--record-size", "200", "--throughput", "-1", "--command-property"]
    producer = [f"bootstrap.servers={bootstrap}", f"client.id={group}-producer", "acks=all"]
    perf = "org.apache.kafka.tools"
    sent = call(*java, f"{perf}.ProducerPerformance", "--topic", TOPIC, "--num-records", str(records), *size, *producer)
    if f"{records} records sent" not in sent:
        raise CheckError(f"Java's producer at {bootstrap}: {sent[-300:]}")
    consumer = ["--bootstrap-server", bootstrap, "--topic", TOPIC, "--group", group, "--num-records", str(records)]
    read = call(*java, f"{perf}.ConsumerPerformance", *consumer, "--timeout", "30000")
    columns = read.splitlines()[-1].split(", ")
    if len(columns) < 5 or int(columns[4]) < records:
        raise CheckError(f"Java's consumer at {bootstrap}: {read[-300:]}")
    return time.monotonic() - began


def by_librdkafka(call: Callable[..., str], bootstrap: str, group: str, *python: str, records: int = RECORDS) -> float:
    began = time.monotonic()
    said = call(*python, bootstrap, TOPIC, group, str(records))
    if said.split()[-1:] != [str(records)]:
        raise CheckError(f"librdkafka at {bootstrap}: {said[-300:]}")
    return time.monotonic() - began


def inside(release: Release, group: str = "inside") -> str:
    """By the service's name, from another namespace."""
    java = ["java", "-Xmx200m", "-Dlog4j2.configurationFile=/files/log4j2.properties", "-cp", "/libs/*"]
    took = by_java(in_pod, release.bootstrap, f"java-{group}", *java)
    also = by_librdkafka(in_pod, release.bootstrap, f"librdkafka-{group}", "python3", "/files/librdkafka.py")
    return f"Java {RECORDS} records in {took:.1f} s, librdkafka {RECORDS} in {also:.1f} s, at {release.bootstrap}"


def outside(release: Release) -> str:
    """By the node port, from the node."""
    bootstrap = f"{NODE_IP}:{OUTSIDE_PORT}"
    log4j = f"-Dlog4j2.configurationFile={STATE / 'files' / 'log4j2.properties'}"
    java = [find_java(), "-Xmx200m", log4j, "-cp", f"{release.outside.libs}/*"]
    took = by_java(run, bootstrap, "java-outside", *java)
    script = str(STATE / "files" / "librdkafka.py")
    also = by_librdkafka(run, bootstrap, "librdkafka-outside", sys.executable, script)
    return f"Java {RECORDS} records in {took:.1f} s, librdkafka {RECORDS} in {also:.1f} s, at {bootstrap}"


def otlp(release: Release) -> str:
    """A service that speaks OTLP over HTTP, in another namespace."""
    now = f"{time.time_ns()}"
    gauge = {"gauge": {"dataPoints": [{"asDouble": 7.5, "timeUnixNano": now}]}, "name": "otlp.from.another.namespace"}
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": "payments"}}]}
    payload = json.dumps({"resourceMetrics": [{"resource": service, "scopeMetrics": [{"metrics": [gauge]}]}]})
    url = f"http://{release.telemetry}:4318/v1/metrics"
    began = time.monotonic()
    if (status := in_pod("python3", "-c", _OTLP, url, payload)) != "200":
        raise CheckError(f"{url} answered {status}")
    query = "SELECT count() FROM headroom.client_metrics WHERE metric = 'otlp.from.another.namespace'"
    until(180, lambda: release.outside.query(query)[0][0], "the point is stored")
    return f"1 point stored {time.monotonic() - began:.1f} s after it was sent to {url}"
