"""A JVM with Kafka's classes, driven from Python through py4j: real Java clients, JMX, and Kafka's own Admin."""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from headroom.demo.processes import LOOPBACK, DemoError, Service, complaint, first_line, start, stop

START_TIMEOUT_S = 30.0
ADMIN_TIMEOUT_S = 30

_BYTES = "org.apache.kafka.common.serialization.ByteArray"
_JVM = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]

LOG4J = """status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = [%d] %p %m (%c)%n
"""


class Jvm(Service):
    """A context manager. `classes` is py4j's view: `jvm.classes.org.apache.kafka...`; 0.1 ms a call, any thread.

    It always ends with this process: by SIGTERM, the end of its stdin, or PR_SET_PDEATHSIG.
    """

    def __init__(self, java: str, libs: Path, options: Sequence[str] = _JVM, log: Path | None = None) -> None:
        self._java = java
        self._options = options
        py4j = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        self._classpath = f"{py4j}:{libs}/*"
        self._directory = tempfile.TemporaryDirectory(prefix="headroom-jvm-")
        self.log = log or Path(self._directory.name) / "jvm.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: JavaGateway | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def classes(self) -> Any:
        if self._gateway is None:
            raise DemoError("the JVM is not started")
        return self._gateway.jvm

    def start(self) -> None:
        """Raises DemoError when the JVM does not come up."""
        log4j = Path(self._directory.name) / "log4j2.properties"
        log4j.write_text(LOG4J)
        options = [*self._options, f"-Dlog4j2.configurationFile={log4j}", "-cp", self._classpath]
        server = ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        with self.log.open("ab") as log:
            argv = [self._java, *options, *server]
            process = start(argv, stderr=log, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        self._process = process
        port = first_line(process, START_TIMEOUT_S)
        while port and not port.isdecimal():  # a warning, or a debugger's address: a JVM prints them on stdout
            port = first_line(process, START_TIMEOUT_S)
        token = first_line(process, START_TIMEOUT_S) if port else ""
        if not token:
            raise DemoError(f"the JVM for the Java clients did not start: {complaint(self.log)}")
        parameters = GatewayParameters(address=LOOPBACK, port=int(port), auth_token=token, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)

    def stop(self) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()  # not close(), after which finalizers of Java objects would still call
            self._gateway = None
        if self._process is not None:
            stop(self._process)
            self._process = None
        self._directory.cleanup()

    def properties(self, values: Mapping[str, str]) -> Any:
        properties = self.classes.java.util.Properties()
        for key, value in values.items():
            properties.setProperty(key, value)
        return properties

    def producer(self, bootstrap: str, client_id: str, **config: str) -> Any:
        """A KafkaProducer of byte arrays. Further configuration with `_` for `.`: `linger_ms="5"`."""
        serializers = {"key.serializer": f"{_BYTES}Serializer", "value.serializer": f"{_BYTES}Serializer"}
        named = {"bootstrap.servers": bootstrap, "client.id": client_id, **serializers, **_dotted(config)}
        return self.classes.org.apache.kafka.clients.producer.KafkaProducer(self.properties(named))

    def consumer(self, bootstrap: str, client_id: str, group_id: str, **config: str) -> Any:
        """A KafkaConsumer of byte arrays, from the earliest offset unless configured otherwise."""
        named = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "key.deserializer": f"{_BYTES}Deserializer",
            "value.deserializer": f"{_BYTES}Deserializer",
            **_dotted(config),
        }
        return self.classes.org.apache.kafka.clients.consumer.KafkaConsumer(self.properties(named))

    def admin(self, bootstrap: str, **config: str) -> Any:
        named = {"bootstrap.servers": bootstrap, **_dotted(config)}
        return self.classes.org.apache.kafka.clients.admin.Admin.create(self.properties(named))

    def bytes_of(self, size: int) -> Any:
        """A byte[] of zeros in the JVM, to send repeatedly without copying it there."""
        assert self._gateway is not None
        return self._gateway.new_array(self.classes.byte, size)

    def strings(self, values: Sequence[str]) -> Any:
        """A String[] for a main method."""
        assert self._gateway is not None
        array = self._gateway.new_array(self.classes.String, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array

    def duration(self, ms: int) -> Any:
        return self.classes.java.time.Duration.ofMillis(ms)


def _dotted(config: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in config.items()}


class Admin(AbstractContextManager["Admin"]):
    """A context manager around Kafka's Admin. Calls block until they are done, and raise DemoError when refused."""

    def __init__(self, jvm: Jvm, bootstrap: str) -> None:
        self._jvm = jvm
        self._admin = jvm.admin(bootstrap)

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def create_topics(self, names: Sequence[str], partitions: int = 1, replicas: int = 1, **config: str) -> None:
        """Topics with the same shape. Configuration with `_` for `.`: `retention_bytes="1000"`."""
        new_topic = self._jvm.classes.org.apache.kafka.clients.admin.NewTopic
        topics = [new_topic(name, partitions, replicas).configs(_dotted(config)) for name in names]
        self._wait(self._admin.createTopics(topics).all())

    def alter_quota(self, entity: Mapping[str, str | None], values: Mapping[str, float | None]) -> None:
        """`entity` as in KIP-546 (None: the default entity); a value of None removes the key."""
        quota = self._jvm.classes.org.apache.kafka.common.quota
        who = quota.ClientQuotaEntity(self._jvm.classes.java.util.HashMap(dict(entity)))
        operations = [quota.ClientQuotaAlteration.Op(key, value) for key, value in values.items()]
        self._wait(self._admin.alterClientQuotas([quota.ClientQuotaAlteration(who, operations)]).all())

    def set_subscription(self, name: str, metrics: str, interval_ms: int, match: str = "") -> None:
        """Sets a CLIENT_METRICS resource like kafka-client-metrics.sh --alter."""
        values = {"metrics": metrics, "interval.ms": str(interval_ms), "match": match}
        kafka = self._jvm.classes.org.apache.kafka
        kind = kafka.common.config.ConfigResource.Type.CLIENT_METRICS
        resource = kafka.common.config.ConfigResource(kind, name)
        entry, operation = kafka.clients.admin.ConfigEntry, kafka.clients.admin.AlterConfigOp
        settings = [operation(entry(k, v), operation.OpType.SET) for k, v in values.items() if v]
        self._wait(self._admin.incrementalAlterConfigs({resource: settings}).all())

    def _wait(self, future: Any) -> None:
        try:
            future.get(ADMIN_TIMEOUT_S, self._jvm.classes.java.util.concurrent.TimeUnit.SECONDS)
        except Py4JError as exc:
            # The first line only says that an error occurred, the next one names it.
            lines = [line.lstrip(": ") for line in str(exc).splitlines() if line.strip()]
            raise DemoError(f"cannot change the cluster's configuration: {(lines[1:] or lines)[0]}") from exc
