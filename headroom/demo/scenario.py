"""Starts the demo's parts in order (broker, quotas, `headroom serve`, sixteen clients) and stops them in reverse."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from exporters.clickhouse.managed.server import ServerError, find_program
from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from headroom.demo.java_clients import JavaClients
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.librdkafka_clients import LibrdkafkaClients
from headroom.demo.processes import LOOPBACK, DemoError, Service, complaint, first_line, is_free, start, stop
from headroom.demo.script import TOPICS, quotas

CLUSTER = "demo"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0  # it flushes before it ends

# kafka_client_* on /metrics; the topics of each frame, since there are few
_SETTINGS = "quotas: {metrics: {enabled: true}, topics: {sample: 1}}\n"

_READY = re.compile(r"ready kafka=(\S+) http=(\S+) sql=(\S+)")

PUSH_INTERVAL_MS = 5_000
METRICS = "org.apache.kafka."  # all metrics of KIP-714 clients

# Small fetch responses, so that a throttled consumer is muted for a quarter of a second at a time, not for five, and
# reads in steps that are small compared with Kafka's window.
BROKER_PROPERTIES = {"fetch.max.bytes": "65536"}

WARM_UP_S = 25  # Kafka's window is 10 s; it must not contain the clients' ramp any more
WINDOW_S = 60  # from a full minute on, as the live views have it
STORED_AFTER_S = 3.0  # the interval of usage, plus a batch of the store, plus a margin

Tell = Callable[[str], None]


class Serving(Service):
    """`headroom serve` in a child process, as a user would run it. A context manager; `kafka`, `http` and `sql` are
    HOST:PORT of its endpoints."""

    def __init__(self, upstream: str, directory: Path, *, http_port: int = 0) -> None:
        self.log = directory / "serve.log"
        self._settings = directory / "serve.yaml"
        self.kafka = self.http = self.sql = ""
        self._upstream = upstream
        self._http_port = http_port
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when all endpoints are open. Raises DemoError with its last output when they do not open."""
        free = f"{LOOPBACK}:0"
        endpoints = ["--listen", free, "--sql", free, "--http", f"{LOOPBACK}:{self._http_port}"]
        self._settings.write_text(_SETTINGS)
        where = ["--upstream", self._upstream, "--cluster", CLUSTER, "--data", str(self._data)]
        where += ["--config", str(self._settings)]
        with self.log.open("ab") as log:
            argv = [sys.executable, "-P", "-m", "headroom", "serve", *endpoints, *where]
            self._process = start(argv, stderr=log, stdout=subprocess.PIPE)
        ready = _READY.fullmatch(first_line(self._process, START_TIMEOUT_S))
        if ready is None:
            raise DemoError(f"headroom serve did not start: {complaint(self.log)}")
        self.kafka, self.http, self.sql = ready.groups()

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise DemoError(f"headroom serve ended with {self._process.returncode}: {complaint(self.log)}")

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, STOP_TIMEOUT_S)
            self._process = None


class Minute(NamedTuple):
    """The steady window that was measured, [from_ms, to_ms)."""

    from_ms: int
    to_ms: int


class Scenario:
    """Call `build`, `measure`, `quiet_down`, then read the results; the given ExitStack stops everything."""

    def __init__(self, stack: ExitStack, tell: Tell, *, http_port: int = 0) -> None:
        """`http_port`: of the pages, when it is free."""
        self._stack = stack
        self._tell = tell
        self._http_port = http_port
        self._checks: list[Callable[[], None]] = []
        self.directory = Path(tempfile.mkdtemp(prefix="headroom-demo-"))
        stack.callback(shutil.rmtree, self.directory, ignore_errors=True)

    def build(self, jvm_options: Sequence[str] = ()) -> None:
        """Starts everything, the broker's JVM with `jvm_options`. Raises DemoError."""
        java = find_java()
        try:
            find_program(None)
        except ServerError as exc:
            raise DemoError(str(exc)) from exc
        libs = kafka_libs(java, progress=self._tell)
        self._stack.callback(self._tell, "everything stopped")
        self._tell("starting Apache Kafka 4.3.1 (KRaft, one node) and a JVM for the Java clients")
        log = self.directory / "broker.log"
        cluster = LocalCluster(java, libs, properties=BROKER_PROPERTIES, jvm_options=jvm_options, log=log)
        self._stack.enter_context(cluster)
        jvm = self._stack.enter_context(Jvm(java, libs, log=self.directory / "jvm.log"))
        self._tell("setting topics, client quotas and the telemetry subscription, as an admin does")
        with Admin(jvm, cluster.bootstrap) as admin:
            admin.create_topics(TOPICS)
            for entity, values in quotas():
                admin.alter_quota(entity, values)
            admin.set_subscription("demo", METRICS, PUSH_INTERVAL_MS)
        self._tell("starting headroom serve in front of it")
        self.serving = self._stack.enter_context(
            Serving(cluster.bootstrap, self.directory, http_port=self._http_port if is_free(self._http_port) else 0)
        )
        self._tell(f"the pages: http://{self.serving.http}/")
        self._checks += [cluster.check, self.serving.check]
        self._tell("starting 16 clients through the gateway: 8 Java, 8 librdkafka")
        gateway = self.serving.kafka
        self._families = (JavaClients(jvm, gateway), LibrdkafkaClients(gateway, self.directory))
        for family in self._families:  # consumers first, so that records are read as they are produced
            self._stack.callback(family.stop)
            family.start_consumers()
            self._checks.append(family.check)
        for family in self._families:
            family.start_producers()

    def measure(self) -> Minute:
        """Warms up, then waits for a whole minute to pass. Raises DemoError."""
        self._tell(f"warming up for {WARM_UP_S} s")
        self._pause_until(time.time() + WARM_UP_S)
        from_s = (int(time.time()) // WINDOW_S + 1) * WINDOW_S
        self._tell(f"waiting {from_s - time.time():.0f} s for the next full minute")
        self._pause_until(from_s)
        self._tell(f"measuring {WINDOW_S} s")
        self._pause_until(from_s + WINDOW_S)
        return Minute(from_s * 1000, (from_s + WINDOW_S) * 1000)

    def keep(self) -> None:
        """Lets everything run until it is interrupted. Raises DemoError when a part ends."""
        while True:
            self._pause_until(time.time() + 60.0)

    def quiet_down(self) -> None:
        """Closes the clients and waits until their data is stored."""
        self._tell("closing the clients")
        for family in self._families:
            self._checks.remove(family.check)
            family.stop()
        self._pause_until(time.time() + STORED_AFTER_S)

    def keep_logs(self, target: Path) -> bool:
        """Copies the logs after a failure. Returns False when there are none."""
        logs = [*self.directory.glob("*.log")]
        for log in logs:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, target / log.name)
        return bool(logs)

    def _pause_until(self, moment_s: float) -> None:
        """Sleeps and checks all parts. Raises DemoError when one ended."""
        while (left := moment_s - time.time()) > 0:
            time.sleep(min(left, 1.0))
            for check in self._checks:
                check()
