"""A cluster of managed ClickHouse servers with ZooKeeper, and users by the files of deploy/clickhouse/roles.

The server inside the chdb wheel has no Keeper of its own.
"""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from exporters.clickhouse import schema
from exporters.clickhouse.connection import ANY_DATABASE, DATABASE, Endpoint, StoreOptions
from exporters.clickhouse.managed.configuration import ServerSettings, write_document
from headroom.demo.jars import fetch_once
from headroom.demo.processes import LOOPBACK, free_ports, start, stop
from tests.kit.clickhouse import LaunchedServer, QueriedStore, connected
from tests.kit.serving import eventually

NAME = "metrics"  # of the cluster, in remote_servers
OTHER_DATABASE = "ops"  # which the roles may use as well
ROLES = {"writer": "writers", "reader": "readers", "jobs": "jobs"}  # of each user
_PASSWORD = "only-in-tests"
_MEMORY_BYTES = 1 << 30
_START_S = 120.0
_SESSION_MS = 6_000  # of ZooKeeper: a node that stands still for so long has left; its own ZooKeeper allows 10 s

_ZOOKEEPER = """
    <dependency org="org.apache.zookeeper" name="zookeeper" rev="3.8.4"/>
    <dependency org="org.xerial.snappy" name="snappy-java" rev="1.1.10.5"/>
    <dependency org="io.dropwizard.metrics" name="metrics-core" rev="4.1.12.1"/>
"""


def zookeeper_libs(java: str, cache: Path) -> Path:
    libs = (cache / "zookeeper-3.8.4" / "libs").absolute()
    fetch_once(java, libs, _ZOOKEEPER, print, "ZooKeeper")
    return libs


@contextlib.contextmanager
def zookeeper(java: str, libs: Path, directory: Path) -> Iterator[int]:
    """A running ZooKeeper; yields its port."""
    (port,) = free_ports(1)
    directory.mkdir(parents=True)
    configuration = directory / "zoo.cfg"
    configuration.write_text(
        f"tickTime=500\ndataDir={directory}\nclientPort={port}\nclientPortAddress={LOOPBACK}\nadmin.enableServer=false\n"
    )
    command = [java, "-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no", "-cp", f"{libs}/*"]
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    with (directory / "log").open("wb") as log:
        process = start([*command, main, str(configuration)], stderr=log)
    try:
        eventually(lambda: _answers(port), bool, _START_S)
        yield port
    finally:
        stop(process)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1) as connection:
        connection.settimeout(1)
        connection.sendall(b"srvr")
        return b"Mode: standalone" in connection.makefile("rb").read()
    return False


class Node(LaunchedServer):
    """One replica of one shard. `kill` and `restart` keep its ports."""

    def __init__(self, directory: Path, sections: dict[str, Any], ports: tuple[int, int]) -> None:
        for name in ("conf.d", "users.d"):
            (directory / name).mkdir(parents=True)
        admin = {"password": _PASSWORD, "networks": {"ip": "::/0"}, "profile": "base", "quota": "default"}
        users = {"users": {"admin": {**admin, "access_management": 1}}}
        write_document(directory / "users.d" / "admin.xml", users)
        # Users of roles are the same on all nodes.
        access = {"users_xml": {"path": str(directory / "users.xml")}, "replicated": {"zookeeper_path": "/access"}}
        write_document(directory / "conf.d" / "cluster.xml", {**sections, "user_directories": access})
        http_port, native_port = ports
        super().__init__(
            ServerSettings(directory, http_port=http_port, native_port=native_port, memory_bytes=_MEMORY_BYTES)
        )

    def start(self) -> None:
        """Returns when its tables accept rows: those that it had first wait for the session of the killed process."""
        self.launch()
        self.wait_ready()
        readonly = "SELECT countIf(is_readonly) FROM system.replicas"
        with self.admin() as client:
            eventually(lambda: client.query(readonly).result_rows, lambda found: found == [(0,)], _START_S)

    def kill(self) -> None:
        """As a power loss of the process: SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def endpoint(self, user: str) -> Endpoint:
        return Endpoint("http", self.writer.host, self.http_port, user, _PASSWORD)

    def admin(self) -> Client:
        return connected(Endpoint("http", self.writer.host, self.http_port, "admin", _PASSWORD), database=ANY_DATABASE)


class RunningCluster:
    """`nodes` by shard, then replica; all run and have the users of ROLES."""

    def __init__(self, nodes: list[Node], password_file: Path) -> None:
        self.nodes = nodes
        self.password_file = password_file  # of all its users

    def store(self, database: str = DATABASE, **options: Any) -> QueriedStore:
        nodes = (replace(node.endpoint("writer"), database=database) for node in self.nodes)
        return QueriedStore(*nodes, options=StoreOptions(NAME, **options))

    @property
    def url(self) -> str:
        return ",".join(node.endpoint("writer").url for node in self.nodes)

    def wait_in_sync(self) -> None:
        """Until every replica of every table has all rows."""
        for node in self.nodes:
            with node.admin() as client:
                tables = client.query(
                    "SELECT database, name FROM system.tables WHERE engine LIKE 'Replicated%MergeTree'"
                )
                for database, table in tables.result_rows:
                    client.command(f"SYSTEM SYNC REPLICA {database}.{table} LIGHTWEIGHT")


@contextlib.contextmanager
def running_cluster(java: str, libs: Path, directory: Path, *, shards: int, replicas: int) -> Iterator[RunningCluster]:
    """Dies with the calling thread."""
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(zookeeper(java, libs, directory / "zookeeper"))
        ports = {
            (shard, replica): (free_ports(3)) for shard in range(1, shards + 1) for replica in range(1, replicas + 1)
        }
        nodes = []
        for (shard, replica), (http, native, between) in ports.items():
            sections = _sections(keeper, shard, replica, between, {place: found[1] for place, found in ports.items()})
            node = Node(directory / f"node-{shard}-{replica}", sections, (http, native))
            stack.callback(node.stop, grace_s=0.5)
            node.launch()
            nodes.append(node)
        for node in nodes:
            node.wait_ready()
        with nodes[0].admin() as client:
            for user, role in ROLES.items():  # as an administrator does it: the files of roles, then a user for each
                text = (files("deploy") / "clickhouse" / "roles" / f"{role}.sql").read_text(encoding="utf-8")
                for statement in schema.statements(text):
                    client.command(statement)
                    if statement.startswith("GRANT"):  # and for a database of another name
                        client.command(statement.replace(f"{DATABASE}.", f"{OTHER_DATABASE}."))
                client.command(
                    f"CREATE USER {user} IDENTIFIED BY '{_PASSWORD}' DEFAULT ROLE headroom_{role}"
                    f" SETTINGS PROFILE 'headroom_{role}'"
                )
        (directory / "password").write_text(_PASSWORD)
        yield RunningCluster(nodes, directory / "password")


def _sections(
    keeper: int, shard: int, replica: int, between: int, native: dict[tuple[int, int], int]
) -> dict[str, Any]:
    shards: dict[int, list[dict[str, Any]]] = {}
    for (of_shard, _), port in native.items():
        shards.setdefault(of_shard, []).append({"host": LOOPBACK, "port": port})
    layout = [{"internal_replication": "true", "replica": nodes} for nodes in shards.values()]
    return {
        "zookeeper": {"node": {"host": LOOPBACK, "port": keeper}, "session_timeout_ms": _SESSION_MS},
        "macros": {"shard": shard, "replica": replica},
        "interserver_http_port": between,
        "interserver_http_host": LOOPBACK,
        "interserver_listen_host": LOOPBACK,
        "distributed_ddl": {"path": "/clickhouse/task_queue/ddl"},
        "remote_servers": {NAME: {"secret": _PASSWORD, "shard": layout}},
    }
