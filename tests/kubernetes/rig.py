"""What checks use: kubectl and helm, and what stands outside the cluster, a Kafka broker and a ClickHouse."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.managed.configuration import ServerSettings
from headroom.demo.broker import Broker, server_properties
from headroom.demo.jars import KAFKA_VERSION, find_java, kafka_libs
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import Service
from tests.kit.clickhouse import LaunchedServer, connected

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "headroom"
STATE = ROOT / "build" / "kubernetes"
NODE, NODE_IP, NODE_IP6 = "rig", "10.99.0.1", "fd00:99::1"
BROKER_ID = 1
NAMESPACE = "headroom"  # of the release that most checks look at
RESTRICTED = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]

_Value = TypeVar("_Value")


class CheckError(Exception):
    """What a check found wrong."""


class NotTriedError(Exception):
    """Why this machine cannot run a check."""


def run(*argv: str | Path, stdin: str = "", timeout_s: float = 180.0) -> str:
    """Output of a program. Raises CheckError with its last words when it fails."""
    try:
        ended = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as exc:
        raise CheckError(f"{' '.join(map(str, argv[:6]))}: not within {timeout_s:.0f} s") from exc
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout)[-600:].split())
        raise CheckError(f"{' '.join(map(str, argv[:6]))}: {said}")
    return ended.stdout.strip()


def kubectl(*argv: str | Path, stdin: str = "", timeout_s: float = 180.0) -> str:
    return run("kubectl", *argv, stdin=stdin, timeout_s=timeout_s)


def helm(*argv: str | Path, values: Mapping[str, Any] | None = None) -> str:
    """`values` are those of a file."""
    values_flags = ["-f", "-"] if values is not None else []
    return run("helm", *argv, *values_flags, stdin=yaml.safe_dump(dict(values or {})))


def until(seconds: float, question: Callable[[], _Value], what: str) -> _Value:
    """Asks until the answer is true, and returns it. Raises CheckError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := question():
            return answer
        if time.monotonic() > deadline:
            raise CheckError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)


def create_namespace(name: str) -> None:
    """One that enforces the `restricted` standard."""
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, *RESTRICTED)


def wait_ready(namespace: str, release: str = "headroom", timeout_s: int = 180) -> None:
    kubectl("-n", namespace, "rollout", "status", f"sts/{release}", f"--timeout={timeout_s}s", timeout_s=timeout_s + 10)


def pod_status(namespace: str, pod: str) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(kubectl("-n", namespace, "get", "pod", pod, "-o", "json"))["status"]
    return status


def ready_again(namespace: str, pod: str, restarts: int) -> bool:
    """Whether the container was restarted more often than that, and is ready."""
    [container] = pod_status(namespace, pod).get("containerStatuses", [{}])
    return bool(container.get("ready")) and container["restartCount"] > restarts


class Outside(Service):
    """Broker and ClickHouse on the node, reached as broker-0.kafka:9092 and clickhouse.store:8123."""

    def __init__(self) -> None:
        java = find_java()
        self.libs = kafka_libs(java, ROOT / ".cache" / f"kafka-{KAFKA_VERSION}")
        self.jvm = Jvm(java, self.libs)
        directory = STATE / "host"
        listeners = {
            "listeners": f"PLAINTEXT://{NODE_IP}:9092,SIX://[{NODE_IP6}]:9096,CONTROLLER://127.0.0.1:9190",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        properties = server_properties(BROKER_ID, 9092, "127.0.0.1:9190", directory / "logs")
        self._broker = Broker(java, self.libs, directory / "kafka", properties | listeners)
        settings = ServerSettings(
            directory / "clickhouse", NODE_IP, 8123, host_names=("clickhouse", "clickhouse.store")
        )
        self._settings = settings
        self.store: LaunchedServer | None = None

    def start(self) -> None:
        self._broker.format()
        self._broker.start()
        self.start_store()
        self._broker.wait_ready()
        self.jvm.start()
        with Admin(self.jvm, f"{NODE_IP}:9092") as admin:
            admin.create_topics(["orders"], partitions=2)
            admin.set_subscription("all", "*", 1000)
            admin.alter_quota({"client-id": None}, {"producer_byte_rate": 5e6, "consumer_byte_rate": 5e6})

    def start_store(self) -> None:
        self._settings.directory.mkdir(parents=True, exist_ok=True)
        self.store = LaunchedServer(self._settings)
        self.store.launch()
        self.store.wait_ready()

    def stop_store(self) -> None:
        if self.store is not None:
            self.store.stop()
            self.store = None

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows, as the writer reads them."""
        assert self.store is not None
        url = f"http://headroom_writer@{NODE_IP}:8123/headroom"
        endpoint = Endpoint.parse(url, self.store.writer.password)
        with connected(endpoint) as client:
            return [tuple(row) for row in client.query(sql).result_rows]

    def stop(self) -> None:
        self.jvm.stop()
        self.stop_store()
        self._broker.stop()
