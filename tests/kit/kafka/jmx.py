"""Reads byte-rate and throttle-time of a broker's quota sensors by JMX."""

from __future__ import annotations

from typing import NamedTuple

from exporters.model import QuotaKey
from headroom.demo.jvm import Jvm, java_errors
from headroom.demo.processes import LOOPBACK

_TYPES = {"Produce": QuotaKey.PRODUCER_BYTE_RATE, "Fetch": QuotaKey.CONSUMER_BYTE_RATE}


class Sensor(NamedTuple):
    """A reading of a quota sensor. `throttle_ms`: Kafka's average over a minute, NaN before the first throttle."""

    byte_rate: float
    throttle_ms: float


def jmx_options(port: int) -> list[str]:
    """JVM options that open JMX on the loopback address."""
    settings = {
        "port": port,
        "rmi.port": port,
        "host": LOOPBACK,
        "authenticate": "false",
        "ssl": "false",
    }
    remote = [f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in settings.items()]
    return [*remote, f"-Djava.rmi.server.hostname={LOOPBACK}"]


class BrokerJmx:
    """A context manager: a JMX connection to one broker, through a JVM."""

    def __init__(self, jvm: Jvm, port: int) -> None:
        self._management = jvm.classes.javax.management
        url = self._management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{LOOPBACK}:{port}/jmxrmi")
        with java_errors("open the broker's JMX"):
            self._connector = self._management.remote.JMXConnectorFactory.connect(url)
            self._beans = self._connector.getMBeanServerConnection()

    def __enter__(self) -> BrokerJmx:
        return self

    def __exit__(self, *_: object) -> None:
        self._connector.close()

    def sensors(self) -> dict[tuple[QuotaKey, str], Sensor]:
        """By quota key and client id. Raises DemoError."""
        with java_errors("read the broker's JMX"):
            return self._sensors()

    def _sensors(self) -> dict[tuple[QuotaKey, str], Sensor]:
        found: dict[tuple[QuotaKey, str], Sensor] = {}
        for kind, quota_key in _TYPES.items():
            pattern = self._management.ObjectName(f"kafka.server:type={kind},client-id=*,*")
            for name in self._beans.queryNames(pattern, None):
                rate, throttle = (self._beans.getAttribute(name, key) for key in ("byte-rate", "throttle-time"))
                found[quota_key, name.getKeyProperty("client-id")] = Sensor(rate, throttle)
        return found
