"""`headroom serve` in front of a secured cluster, its tables, and clients for it."""

import resource
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import psutil

from tests.kit.secure_cluster import SecureCluster
from tests.kit.serving import PATIENCE_S, Served, config_file


def rows(served: Served, query: str) -> list[str]:
    """The rows, or none while the table does not exist."""
    try:
        with urllib.request.urlopen(f"http://{served.sql}/", query.encode(), timeout=30) as answer:
            return str(answer.read().decode()).splitlines()
    except urllib.error.HTTPError as refused:
        if "UNKNOWN_TABLE" not in refused.read().decode():
            raise
        return []


def librdkafka(cluster: SecureCluster, user: str, secret: str | None = None) -> dict[str, str]:
    tls = {"security.protocol": "sasl_ssl", "ssl.ca.location": str(cluster.authority.ca)}
    login = {"sasl.username": user, "sasl.password": secret or f"{user}-secret"}
    return tls | {"sasl.mechanism": "PLAIN"} | login


@contextmanager
def serving(directory: Path, cluster: SecureCluster, *more: str) -> Iterator[Served]:
    """SASL_SSL on both sides; clients push twice a second.

    At the end it crashes where core dumps are allowed, in this directory. Neither files nor tables hold a password.
    """
    certificate, key = cluster.authority.issue("served")
    arguments = ["--upstream", cluster.bootstrap("SASL_SSL")]
    arguments += ["--command-config", str(cluster.command_config("SASL_SSL"))]
    arguments += ["--security-protocol", "SASL_SSL", "--tls-certificate", str(certificate), "--tls-key", str(key)]
    arguments += config_file(directory, push_ms=500)
    with ExitStack() as stack:
        with chdir(directory):
            starting = Served(directory, *arguments, *more, core_dumps=False)
            served = stack.enter_context(starting)
        yield served
        tables = rows(served, "SELECT name FROM system.tables WHERE database = 'headroom' AND engine LIKE '%MergeTree'")
        assert "quota_usage" in tables
        for table in tables:  # by SQL, as files are compressed
            assert not [
                row for row in rows(served, f"SELECT * FROM headroom.{table} FORMAT JSONEachRow") if "-secret" in row
            ]
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        children = served.children("headroom.server.processes.network_process")
        processes: list[psutil.Process | subprocess.Popen[bytes]] = [*children, served.process]
        for process in processes:  # as by a fault in C: the kernel writes core dumps of those that do not forbid it
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (hard, hard))
            process.send_signal(signal.SIGABRT)
            process.wait(PATIENCE_S)
        assert served.process.returncode == -signal.SIGABRT
    pattern = "(alice|carol|wrong|admin)-secret"
    found = subprocess.run(["grep", "-r", "-l", "-a", "-E", pattern, str(directory)], capture_output=True, text=True)
    assert found.stdout == ""
