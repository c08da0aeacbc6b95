"""JVM options of a broker whose JMX tests read."""

from headroom.demo.processes import LOOPBACK


def jmx_options(port: int) -> list[str]:
    settings = {
        "port": port,
        "rmi.port": port,
        "host": LOOPBACK,
        "authenticate": "false",
        "ssl": "false",
    }
    remote = [f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in settings.items()]
    return [*remote, f"-Djava.rmi.server.hostname={LOOPBACK}"]
