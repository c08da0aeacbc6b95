"""`headroom serve` as a user starts it, and what tests ask of it: listeners, metrics, readiness, children."""

import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import clickhouse_connect
import psutil
import yaml

from headroom.cli.serve_api import ask
from headroom.demo.processes import LOOPBACK, complaint, first_line, start, stop

PATIENCE_S = 150.0  # many times what a busy machine needs: only a fault takes as long
T = TypeVar("T")

_READY = re.compile(r"ready((?: [a-z-]+=\S+)+)")
_SAMPLE = re.compile(r'^(\w+)(?:\{\w+="(\w+)"\})? (\S+)$', re.MULTILINE)


class Served:
    """A context manager; listeners take free ports unless `arguments` say otherwise. `kafka` and `http` are
    HOST:PORT."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        core_dumps: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`core_dumps`: without them only a process with CAP_SYS_PTRACE sees its connections. `environment`: variables
        that its processes have besides those of the test."""
        self.log = directory / "serve.log"
        free = f"{LOOPBACK}:0"
        listeners = ["--listen", free, "--http", free, "--sql", free]
        self.argv = [
            "env",
            f"HEADROOM_CORE_DUMPS={core_dumps}",
            *(f"{name}={value}" for name, value in environment.items()),
            sys.executable,
            "-m",
            "headroom",
            "serve",
            "--data",
            str(directory / "data"),
            *listeners,
            *arguments,
        ]

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self.process = start(self.argv, stderr=log, stdout=subprocess.PIPE)
        ready = _READY.fullmatch(first_line(self.process, PATIENCE_S))
        if ready is None:
            self.stop()
            raise RuntimeError(f"headroom serve did not start: {complaint(self.log)}")
        self.addresses = dict(named.split("=", 1) for named in ready[1].split())
        self.kafka, self.http, self.sql = (self.addresses.get(name, "") for name in ("kafka", "http", "sql"))
        self.grpc = self.addresses.get("grpc", "")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.kafka.rpartition(":")
        return host, int(port)

    def stop(self) -> int:
        """As an operator would; the exit status."""
        return stop(self.process, PATIENCE_S)

    def children(self, module: str) -> list[psutil.Process]:
        """Its child processes that run a module."""
        return [child for child in psutil.Process(self.process.pid).children() if module in _cmdline(child)]

    def ready(self, query: str = "") -> tuple[int, str]:
        """Status and text of /readyz, which shows more with `?verbose`."""
        return status_and_text(f"http://{self.http}/readyz{query}")

    def serves_kafka(self) -> tuple[int, str]:
        """Status and text of /readyz/kafka, by which clients are sent here."""
        return status_and_text(f"http://{self.http}/readyz/kafka")

    def metrics(self) -> dict[str, float]:
        """Its own metrics: `name` or `name:label`."""
        text = status_and_text(f"http://{self.http}/metrics")[1]
        return {f"{name}:{label}" if label else name: float(value) for name, label, value in _SAMPLE.findall(text)}


def config_file(directory: Path, *, push_ms: int = 0, **settings: object) -> list[str]:
    """Arguments that name a new configuration file. `push_ms`: all clients push all metrics so often."""
    if push_ms:
        file = directory / "subscriptions.yaml"
        file.write_text(f"all: {{metrics: '*', interval.ms: {push_ms}}}\n")
        settings["subscriptions"] = str(file)
    config = directory / "headroom.yaml"
    config.write_text(yaml.safe_dump(settings))
    return ["--config", str(config)]


def is_at_rest(metrics: Mapping[str, float]) -> bool:
    """Whether everything that was received is written or dropped."""
    settled = metrics["headroom_records:written"] + metrics["headroom_records:dropped"]
    waiting = metrics["headroom_spool_bytes"] or metrics["headroom_records:buffered"]
    return not waiting and settled == metrics["headroom_records_received_total"]


def page(http: str, path: str) -> str:
    """The text of a page, or of an answer of the API, at HOST:PORT."""
    with urllib.request.urlopen(f"http://{http}{path}", timeout=30) as answer:
        return bytes(answer.read()).decode()


def levels_by_client(http: str, cluster: str, quota_key: str = "producer_byte_rate") -> dict[str, dict[str, Any]]:
    """The rows of the API, as the overview shows them."""
    found = ask(http, "/api/v1/headroom", {"cluster": cluster})
    return {row["client_id"]: row for row in found if row["quota_key"] == quota_key}


def rows(sql: str, query: str, **parameters: str) -> list[tuple[Any, ...]]:
    """The result of a query at the SQL endpoint HOST:PORT, as a reader."""
    with clickhouse_connect.get_client(dsn=f"http://{sql}/headroom") as client:
        return [tuple(row) for row in client.query(query, parameters=parameters).result_rows]


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # it has ended and was not reaped yet
        return []


def eventually(
    ask: Callable[[], T], is_so: Callable[[T], bool], within_s: float = PATIENCE_S, every_s: float = 0.05
) -> T:
    """Polls until the condition holds and returns the value. Fails with the last value after the time limit."""
    deadline = time.monotonic() + within_s
    while not is_so(found := ask()):
        assert time.monotonic() < deadline, f"waited {within_s:.0f} s, and it still is {found!r}"
        time.sleep(every_s)
    return found


@contextmanager
def running(*clients: Callable[[threading.Event], None]) -> Iterator[None]:
    """Each in a thread, until the block ends. Raises what one of them raised."""
    done = threading.Event()
    with ThreadPoolExecutor(len(clients)) as pool:
        futures = [pool.submit(client, done) for client in clients]
        try:
            yield
        finally:
            done.set()
        for future in futures:
            future.result()


def output_of(*arguments: str, within_s: float = 300.0) -> str:
    """What a `headroom` command prints. Raises subprocess.SubprocessError."""
    command = [sys.executable, "-m", "headroom", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=within_s).stdout


def status_and_text(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
