"""The managed server: its program and ports, the command that runs it, whether it answers, its last error.

The program is the configured one, `clickhouse` on PATH, or the server in the chdb wheel.

headroom/server/storage.py runs it.
"""

import contextlib
import fcntl
import http.client
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from exporters.clickhouse.client import refuse_old
from exporters.clickhouse.connection import WRITER, Endpoint
from exporters.clickhouse.errors import StoreTooOldError
from exporters.clickhouse.managed.access import users_document, workloads, writer_password
from exporters.clickhouse.managed.configuration import ServerSettings, server_document, write_document
from exporters.printable import one_line

_LIBRARY = "_chdb.abi3.so"
_GUARD = Path(__file__).with_name("write_guard.so")
_POLL_S = 0.05
_VERSION_S = 30.0  # for a program of 500 MB on a slow disk
_PREDECESSOR_S = 30.0


class ServerError(Exception):
    """The server cannot be found or cannot start; the message is one line and says what to do."""


def find_program(configured: Path | None) -> str:
    """The path of an executable or of the wheel's library. Raises ServerError."""
    if configured is not None and not (configured.is_file() and os.access(configured, os.X_OK)):
        raise ServerError(f"cannot run ClickHouse: {configured} is not an executable file")
    if program := str(configured.resolve()) if configured else shutil.which("clickhouse"):
        _refuse_old_program(program)
        return program
    # Does not import chdb, which would load 800 MB into this process.
    spec = importlib.util.find_spec("chdb") if sys.platform == "linux" else None
    directories = (spec.submodule_search_locations if spec else None) or ()
    libraries = [Path(directory) / _LIBRARY for directory in directories]
    library = next((library for library in libraries if library.is_file()), None)
    if library is None:
        install = "install headroom[embedded] or a clickhouse executable on PATH"
        if sys.platform != "linux":
            install = "install a clickhouse executable on PATH (chdb has no server for this system)"
        raise ServerError(f"cannot find a ClickHouse server: {install}, or name a server with --clickhouse")
    return str(library)


def _refuse_old_program(program: str) -> None:
    try:
        command = [program, "server", "--version"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_S, check=False).stdout
        if version := re.search(r"version (\d+\.\d+[.\d]*)", printed):
            refuse_old(version[1])
    except StoreTooOldError as exc:
        raise ServerError(f"{program}: {exc}; name another with store.server.program, or take it off PATH") from exc
    except (OSError, subprocess.SubprocessError) as exc:
        raise ServerError(f"cannot run ClickHouse: {one_line(exc)}") from exc


def is_library(program: str) -> bool:
    """Whether it is the server in the chdb wheel, which ignores failed writes unless `write_guard` is preloaded."""
    return program.endswith(".so")


def write_guard() -> Path | None:
    """The library that ends a process when a write to a file fails; None where it is not compiled, or not Linux, or
    where the loader would split its path."""
    return _GUARD if sys.platform == "linux" and _GUARD.is_file() and not set(":;") & set(str(_GUARD)) else None


class ManagedServer:
    """One server for one directory. `http_port` and `native_port` stay the same across restarts."""

    def __init__(self, settings: ServerSettings) -> None:
        """Reserves the ports and writes the configuration. Waits for the server of a killed parent to end.

        Raises OSError, ServerError: without a program, when another server uses the directory, and where the
        configuration, which is UTF-8, cannot name it.
        """
        if os.fsencode(settings.directory) != str(settings.directory).encode(errors="replace"):
            named = ascii(str(settings.directory))
            raise ServerError(f"ClickHouse needs a path in UTF-8: {named} is none here; use another, or LC_ALL=C.UTF-8")
        self.settings = settings
        self._program = find_program(settings.program)
        settings.store.mkdir(parents=True, exist_ok=True)
        self._wait_for_predecessor()  # it may hold the ports
        self._configuration = settings.directory / "server.xml"
        with contextlib.ExitStack() as ports:
            self.http_port = ports.enter_context(_reserved(settings.host, settings.http_port))
            self.native_port = ports.enter_context(_reserved(settings.host, settings.native_port))
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 compared
            for name in ("files", "schemas", "log"):
                (settings.directory / name).mkdir(exist_ok=True)
            settings.workloads.mkdir(parents=True, exist_ok=True)
            for file in settings.workloads.glob("*.sql"):
                file.unlink()
            for name, statement in workloads(settings.memory_bytes).items():
                (settings.workloads / f"{name}.sql").write_text(f"{statement}\n")
            password = writer_password(settings.password_file)
            users = users_document(password, settings.reader_password, settings.memory_bytes)
            write_document(settings.users_file, users)
            write_document(self._configuration, server_document(settings, self.http_port, self.native_port))
            self._ports = ports.pop_all()
        self.writer = Endpoint("http", host, self.http_port, WRITER, password, is_direct=True)  # for this machine

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of the process. It dies with the thread that starts it (prctl(2)), which must outlive it."""
        return (
            sys.executable,
            "-P",
            "-m",
            "exporters.clickhouse.managed.launcher",
            str(os.getpid()),
            self._program,
            str(self._configuration),
        )

    @property
    def output(self) -> Path:
        return self.settings.error_log.with_name("output.log")

    def close(self) -> None:
        """Releases the ports, once the process has ended."""
        self._ports.close()

    @property
    def ignores_failed_writes(self) -> bool:
        """Whether a full disk can lose rows that the server has confirmed: see write_guard.c."""
        return is_library(self._program) and write_guard() is None

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        guard = write_guard() if is_library(self._program) else None
        if guard is None:
            return dict(inherited)
        # Found by its name: LD_PRELOAD is split at blanks, which a path may have; an empty LD_LIBRARY_PATH means ".".
        library_path = ":".join(filter(None, (str(guard.parent), inherited.get("LD_LIBRARY_PATH"))))
        preloaded = f"{guard.name} {inherited.get('LD_PRELOAD', '')}".strip()
        return {**inherited, "LD_PRELOAD": preloaded, "LD_LIBRARY_PATH": library_path}

    def answers(self) -> bool:
        """Whether the server is ready; waits for at most a second."""
        with contextlib.closing(http.client.HTTPConnection(self.writer.host, self.http_port, timeout=1)) as connection:
            try:
                connection.request("GET", "/ping")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    def _wait_for_predecessor(self) -> None:
        """Waits for the server of a killed parent: the kernel sends it SIGTERM, and it holds a lock until it ends."""
        deadline_s = time.monotonic() + _PREDECESSOR_S
        with (self.settings.store / "status").open("a+b") as file:
            while True:
                try:
                    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as exc:
                    if time.monotonic() > deadline_s:
                        raise ServerError(f"another ClickHouse server uses {self.settings.directory}") from exc
                time.sleep(_POLL_S)

    def last_error(self, exit_status: int) -> str:
        """The last error that the process printed, else that it logged; one line."""
        if exit_status == os.EX_IOERR:  # of write_guard.c; the log's disk may be full
            return f"cannot write below {self.settings.directory}: the disk is full or fails"
        for log in (self.output, self.settings.error_log):
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            errors = [line.strip() for line in lines if "Exception" in line or "Error" in line]
            if errors:
                return errors[-1][:500]
        return "it logged nothing"


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """Reserves a port for a process that binds it with SO_REUSEPORT; yields its number.

    Raises OSError when the port is in use, even if it is shareable.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(address)
        bound = alone.getsockname()
    with socket.socket(family) as shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind(bound)
        yield int(bound[1])
