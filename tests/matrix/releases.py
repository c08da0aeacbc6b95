"""Clusters of other Kafka releases: one broker, with ZooKeeper before 3.3, jars from Maven Central by Spark's Ivy."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from headroom.demo.broker import START_TIMEOUT_S, Broker, server_properties
from headroom.demo.jars import KAFKA_VERSION, fetch_once, kafka_libs
from headroom.demo.processes import LOOPBACK, Service, free_ports, start, stop

BROKERS: Final = ("2.8.2", "3.3.2", "3.5.2", "3.7.2", "3.9.1", "4.0.0", KAFKA_VERSION)

# Logging is no dependency of the artifact; releases before 4.0 log by reload4j.
_LOGGING = {
    3: '<dependency org="org.slf4j" name="slf4j-reload4j" rev="1.7.36"/>',
    4: '<dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.1"/>',
}
_KAFKA = """
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{release}"/>
    {logging}
    <exclude org="org.slf4j" module="slf4j-log4j12"/>
    <exclude org="log4j" module="log4j"/>
"""
_RELOAD4J = """log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.kafka.server=INFO
log4j.logger.kafka.server.KafkaConfig=WARN
"""


def number(release: str) -> tuple[int, ...]:
    """3.10.1 as a tuple, which sorts after 3.9."""
    return tuple(map(int, release.split(".")))


def has_client_metrics(release: str) -> bool:
    """CLIENT_METRICS resources came with KIP-714."""
    return number(release) >= (3, 7)


def release_libs(java: str, release: str, cache: Path) -> Path:
    """Directory of a release's jars; fetches them if needed. Raises DemoError."""
    if release == KAFKA_VERSION:
        return kafka_libs(java, cache / f"kafka-{release}")
    libs = (cache / f"kafka-{release}" / "libs").absolute()
    dependencies = _KAFKA.format(release=release, logging=_LOGGING[max(number(release)[0], 3)])
    fetch_once(java, libs, dependencies, print, f"the jars of Kafka {release} (about 60 MB, once)")
    return libs


class ReleaseCluster(Service):
    """A context manager; `bootstrap` is the HOST:PORT of the broker."""

    def __init__(self, java: str, release: str, libs: Path) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"headroom-kafka-{release}-"))
        other, port = free_ports(2)
        self.bootstrap = f"{LOOPBACK}:{port}"
        (self._directory / "log4j.properties").write_text(_RELOAD4J)
        options = [f"-Dlog4j.configuration=file:{self._directory / 'log4j.properties'}"]
        properties = server_properties(1, port, f"{LOOPBACK}:{other}", self._directory / "node" / "logs")
        self._zookeeper: ZooKeeper | None = None
        if number(release) < (3, 3):
            self._zookeeper = ZooKeeper(java, libs, self._directory, other)
            kraft = ("process.roles", "node.id", "controller.", "listener.security.protocol.map")
            properties = {name: value for name, value in properties.items() if not name.startswith(kraft)}
            properties |= {"broker.id": "1", "zookeeper.connect": f"{LOOPBACK}:{other}"}
            properties |= {"listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
            self._broker: Broker = ZooKeeperBroker(java, libs, self._directory / "node", properties, options)
        else:
            self._broker = Broker(java, libs, self._directory / "node", properties, options)

    def start(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.start()
        self._broker.format()
        self._broker.start()
        self._broker.wait_ready()

    def stop(self) -> None:
        self._broker.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


class ZooKeeperBroker(Broker):
    """A broker whose storage needs no format."""

    ready = "[KafkaServer id=1] started"

    def format(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))

    def start(self) -> None:
        self._process = self._run(*self._jvm_options, "kafka.Kafka", str(self._config))


class ZooKeeper(Service):
    """One ZooKeeper of the jars of a release."""

    def __init__(self, java: str, libs: Path, directory: Path, port: int) -> None:
        self._argv = [
            *(java, "-Xmx128m", f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}", "-cp", f"{libs}/*"),
            *("org.apache.zookeeper.server.ZooKeeperServerMain", str(directory / "zookeeper.properties")),
        ]
        settings = (f"dataDir={directory / 'zookeeper'}", f"clientPort={port}", f"clientPortAddress={LOOPBACK}")
        more = ("admin.enableServer=false", "maxClientCnxns=0", "4lw.commands.whitelist=ruok")
        (directory / "zookeeper.properties").write_text("\n".join((*settings, *more, "")))
        self._log = directory / "zookeeper.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait: the broker waits for its port."""
        with self._log.open("ab") as log:
            self._process = start(self._argv, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, START_TIMEOUT_S)
            self._process = None
