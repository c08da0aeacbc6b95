"""A real Apache Kafka cluster on free local ports: KRaft, one or more nodes, started in seconds."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headroom.demo.jvm import LOG4J
from headroom.demo.processes import LOOPBACK, DemoError, Service, complaint, free_ports, start, stop

CLUSTER_ID = "headroomDemoClusterAAA"  # a Kafka Uuid: 22 characters of base64url
READY = "Kafka Server started"  # logged when the broker is unfenced and accepts requests
START_TIMEOUT_S = 120.0

# For a short-lived broker on a shared machine: fast start, small heap.
_JVM = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true"]

_LOGGERS = """logger.started.name = kafka.server
logger.started.level = info
logger.configs.name = kafka.server.KafkaConfig
logger.configs.level = warn
"""

_BY_RACK = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def archive(libs: Path) -> Path:
    """Where the class data archive of these jars is, or would be: tests/kit/kafka/class_archive.py writes it."""
    return libs.parent / "broker.jsa"


def server_properties(node_id: int, port: int, controller: str, logs: Path) -> dict[str, str]:
    """Configuration of one node. Node 1 is the controller of all; `controller` is its HOST:PORT."""
    listeners = f"PLAINTEXT://{LOOPBACK}:{port}"
    return {
        "process.roles": "broker,controller" if node_id == 1 else "broker",
        "node.id": str(node_id),
        "listeners": f"{listeners},CONTROLLER://{controller}" if node_id == 1 else listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{controller}",
        "log.dirs": str(logs),
        "num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "num.recovery.threads.per.data.dir": "1",
        "log.cleaner.enable": "false",
        "controlled.shutdown.enable": "false",
    }


class Broker:
    """One Kafka node in a directory. `format`, `start`, then `wait_ready`; `stop` leaves only the directory."""

    ready = READY

    def __init__(
        self, java: str, libs: Path, directory: Path, properties: Mapping[str, str], jvm_options: Sequence[str] = ()
    ) -> None:
        self.log = directory / "broker.log"
        self._jvm_options = list(jvm_options)
        self._java = java
        self._classpath = f"{libs}/*"
        self._archive = archive(libs)
        self._directory = directory
        self._config = directory / "server.properties"
        self._properties = dict(properties)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def format(self) -> None:
        """Begins to format the storage; `start` waits for it, so that several nodes format in parallel."""
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.properties").write_text(LOG4J + _LOGGERS)
        # Java reads Latin-1 with escapes, which are those of JSON.
        lines = (f"{key}={json.dumps(value)[1:-1]}\n" for key, value in self._properties.items())
        self._config.write_text("".join(lines))
        self._process = self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._config))

    def start(self) -> None:
        """Starts the node. Raises DemoError when its storage could not be formatted."""
        if self._process is None or self._process.wait(START_TIMEOUT_S):
            raise DemoError(f"cannot format Kafka's storage: {complaint(self.log)}")
        self._process = self._run(*self._jvm_options, "kafka.Kafka", str(self._config))

    def start_again(self) -> None:
        """Starts a stopped node with its existing storage."""
        self.log.rename(self.log.with_suffix(".before"))  # `wait_ready` reads the output from here
        self._process = self._run(*self._jvm_options, "kafka.Kafka", str(self._config))

    def _run(self, *main: str) -> subprocess.Popen[bytes]:
        log4j = f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}"
        mapped = [f"-XX:SharedArchiveFile={self._archive}"] if self._archive.is_file() else []
        with self.log.open("ab") as log:
            return start([self._java, *_JVM, *mapped, log4j, "-cp", self._classpath, *main], stderr=log)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the broker accepts requests. Raises DemoError when it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while self.ready not in self.log.read_text(errors="replace"):
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"Kafka was not ready after {timeout_s:.0f} s: {complaint(self.log)}")
            time.sleep(0.05)

    def check(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise DemoError(f"Kafka does not run: {complaint(self.log)}")

    def stop(self, grace_s: float = 10.0) -> None:
        if self._process is not None:
            stop(self._process, grace_s)
            self._process = None


def start_brokers(brokers: Sequence[Broker]) -> None:
    """Formats and starts the nodes of a cluster in parallel; returns when all accept requests. Raises DemoError."""
    for broker in brokers:
        broker.format()
    for broker in brokers:
        broker.start()
    for broker in brokers:
        broker.wait_ready()


class LocalCluster(Service):
    """A context manager that runs brokers in a temporary directory; `bootstrap` is the HOST:PORT of all of them.

    `properties` are added to every node's server.properties and override the defaults; `jvm_options` apply to each.
    `racks`: node N is in rack-N, and consumers read from the replica in theirs (KIP-392). `log`: that of
    the first node, to be read after the directory is gone.
    """

    def __init__(
        self,
        java: str,
        libs: Path,
        nodes: int = 1,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        *,
        racks: bool = False,
        log: Path | None = None,
    ) -> None:
        controller, *ports = free_ports(nodes + 1)
        self.directory = Path(tempfile.mkdtemp(prefix="headroom-kafka-"))
        self.bootstrap = ",".join(f"{LOOPBACK}:{port}" for port in ports)
        self.brokers = [
            Broker(java, libs, directory, own | rack | dict(properties or {}), jvm_options)
            for node_id, port in enumerate(ports, start=1)
            for directory in [self.directory / f"node-{node_id}"]
            for own in [server_properties(node_id, port, f"{LOOPBACK}:{controller}", directory / "logs")]
            for rack in [{"broker.rack": f"rack-{node_id}", "replica.selector.class": _BY_RACK} if racks else {}]
        ]
        self.brokers[0].log = log or self.brokers[0].log

    def start(self) -> None:
        start_brokers(self.brokers)

    def check(self) -> None:
        for broker in self.brokers:
            broker.check()

    def stop(self) -> None:
        """The first node is the controller, so it stops last."""
        for broker in reversed(self.brokers):
            broker.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
