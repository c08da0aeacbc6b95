"""`python -m tests.chaos.gateways [SECONDS]`: of two gateways with one advertised name, each is killed in turn and away
for SECONDS (60); how long was each client without an acknowledgement?

One name has the addresses of both gateways, another one that of a load balancer before them; they are in a file over
/etc/hosts that only this process and its children see: a mount namespace, which needs root. Each client sends one
record after another. Exits 1 when one that is set up as docs/gateway.md advises has a gap above five seconds.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import KAFKA_VERSION, find_java, kafka_libs
from headroom.demo.jvm import Admin, Jvm
from headroom.demo.processes import free_ports
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.kafka.client_jars import client_libs
from tests.kit.serving import Served, config_file, running
from tests.telemetry.wire.proxy_hop import TcpBalancer

_DIRECTORY = Path("build/chaos-gateways")
_CACHE = Path(".cache")
_NAME, _BALANCED = "gateways.test", "balancer.test"
_HOSTS, _BALANCER = ("127.0.0.2", "127.0.0.3"), "127.0.0.4"
_FURTHER = 10  # the listener for the load balancer is at the port so far behind the other one
_OF_BROKER = 2  # and that of broker 1 behind each
_IS_INSIDE = "CHAOS_GATEWAYS_INSIDE"
_GOAL_S: Final = 5.0
_SETTLE_S = 15.0
_EVERY_S = 0.05
# librdkafka tries one of a name's addresses a second, drawn at random: docs/gateway.md advises a load balancer.
_WITHOUT_ADVICE = "librdkafka, a name with two addresses"
# Java clients: what to call them, their release, and what they are configured with.
_JAVA: Final[tuple[tuple[str, str, dict[str, str]], ...]] = (
    ("Java 2.8.2", "2.8.2", {}),
    ("Java 3.9.1", "3.9.1", {}),
    (f"Java {KAFKA_VERSION}, rebootstrap", KAFKA_VERSION, {"metadata_recovery_strategy": "rebootstrap"}),
    (f"Java {KAFKA_VERSION}, none", KAFKA_VERSION, {"metadata_recovery_strategy": "none"}),
)


class Sender:
    """Sends a record at a time, `send` returns when it is acknowledged; notes when."""

    def __init__(self, name: str, send: Callable[[], None]) -> None:
        self.name = name
        self.errors = 0
        self._send = send
        self._acknowledged_s = [time.monotonic()]

    def gap_s(self, since_s: float, until_s: float) -> float:
        """The longest time without an acknowledgement that began or ended in between."""
        times = [*self._acknowledged_s, time.monotonic()]
        pairs = itertools.pairwise(times)
        return max((end - begin for begin, end in pairs if end > since_s and begin < until_s), default=0.0)

    def run(self, over: threading.Event) -> None:
        while not over.wait(_EVERY_S):
            try:
                self._send()
            except Exception:  # noqa: BLE001 - of any client: the record is not acknowledged
                self.errors += 1
            else:
                self._acknowledged_s.append(time.monotonic())


def main(away_s: float) -> int:
    """Prints a line for each client."""
    shutil.rmtree(_DIRECTORY, ignore_errors=True)
    java, port = find_java(), free_ports(1)[0]
    libs = kafka_libs(java)
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(java, libs))
        jvm = stack.enter_context(Jvm(java, libs))
        admin = stack.enter_context(Admin(jvm, cluster.bootstrap))
        admin.create_topics(["gateways"])
        store = stack.enter_context(running_clickhouse(_DIRECTORY / "clickhouse"))
        gateways = [_gateway(host, port, cluster, store) for host in _HOSTS]
        for gateway in gateways:
            gateway.__enter__()
            stack.callback(gateway.stop)
        TcpBalancer(_BALANCER, (port + _FURTHER, port + _FURTHER + _OF_BROKER), _HOSTS)
        senders = list(_senders(stack, java, f"{_NAME}:{port}", f"{_BALANCED}:{port + _FURTHER}"))
        with running(*(sender.run for sender in senders)):
            gaps = [_outage(gateway, senders, away_s) for gateway in gateways]
    print(f"longest time without an acknowledgement, each gateway away for {away_s:.0f} s:")
    for sender, *of_outages in zip(senders, *gaps, strict=True):
        print(f"{sender.name}: {', '.join(f'{gap:.1f} s' for gap in of_outages)}; {sender.errors} errors")
    as_advised = [gap for of in gaps for sender, gap in zip(senders, of, strict=True) if sender.name != _WITHOUT_ADVICE]
    return int(max(as_advised) > _GOAL_S)


def _gateway(host: str, port: int, cluster: LocalCluster, store: RunningClickHouse) -> Served:
    directory = _DIRECTORY / host
    directory.mkdir(parents=True)
    where = ("--upstream", cluster.bootstrap, "--cluster", "gateways", "--gateway-id", host)
    further = {"listen": f"{host}:{port + _FURTHER}", "advertised_host": _BALANCED}
    config = config_file(directory, gateway={"advertised_host": _NAME}, listeners=[further])
    return Served(directory, *where, "--listen", f"{host}:{port}", *config, environment=store.environment)


def _outage(gateway: Served, senders: list[Sender], away_s: float) -> list[float]:
    time.sleep(_SETTLE_S)
    began_s = time.monotonic()
    gateway.process.kill()
    time.sleep(away_s)
    gaps = [sender.gap_s(began_s, began_s + away_s) for sender in senders]
    gateway.stop()
    gateway.__enter__()
    return gaps


def _senders(stack: ExitStack, java: str, bootstrap: str, balanced: str) -> Iterator[Sender]:
    jvms: dict[str, Jvm] = {}
    for name, release, config in _JAVA:
        if release not in jvms:
            is_current = release == KAFKA_VERSION
            libs = kafka_libs(java) if is_current else client_libs(java, release, _CACHE / f"kafka-clients-{release}")
            jvms[release] = stack.enter_context(Jvm(java, libs))
        yield Sender(name, _java_send(jvms[release], bootstrap, config))
    yield Sender("librdkafka, a load balancer", _librdkafka_send(balanced))
    yield Sender(_WITHOUT_ADVICE, _librdkafka_send(bootstrap))


def _java_send(jvm: Jvm, bootstrap: str, config: dict[str, str]) -> Callable[[], None]:
    producer = jvm.producer(bootstrap, "gateways", acks="all", **config)
    record = jvm.classes.org.apache.kafka.clients.producer.ProducerRecord("gateways", b"a record")
    return lambda: producer.send(record).get()


def _librdkafka_send(bootstrap: str) -> Callable[[], None]:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})

    def send() -> None:
        failed: list[Any] = []
        producer.produce("gateways", b"a record", on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.flush()
        if failed:
            raise ConnectionError(str(failed[0]))

    return send


def _inside(arguments: list[str]) -> int:
    """Starts this program again where /etc/hosts has the name."""
    with tempfile.NamedTemporaryFile("w", prefix="headroom-hosts-") as hosts:
        named = [(host, _NAME) for host in _HOSTS] + [(_BALANCER, _BALANCED), ("127.0.0.1", "localhost")]
        hosts.write("".join(f"{address} {name}\n" for address, name in named))
        hosts.flush()
        script = f'mount --bind {hosts.name} /etc/hosts && exec "$@"'
        own = [sys.executable, "-m", "tests.chaos.gateways", *arguments]
        environment = {**os.environ, _IS_INSIDE: "1"}
        return subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *own], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(float((sys.argv[1:] or ["60"])[0])) if os.environ.get(_IS_INSIDE) else _inside(sys.argv[1:]))
