"""The managed server's users: one writer, the pages, readers; and the limits of the last two."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

from exporters.clickhouse.connection import DATABASE, WRITER
from exporters.machine import threads

READER = "headroom_reader"
PAGES = "headroom_pages"  # so that readers of the SQL endpoint take nothing of the pages
BASE_PROFILE = "base"
_LOOPBACK = ("127.0.0.1", "::1")
_EVERYWHERE = "::/0"

# System tables that clients and dashboards query. Without system.processes, KILL QUERY finds no query of another user.
_SYSTEM_TABLES = (
    "asynchronous_metrics",
    "data_skipping_indices",
    "databases",
    "disks",
    "events",
    "merges",
    "metrics",
    "parts",
    "parts_columns",
    "settings",
    "tables",
    "columns",
)
_READS = (
    f"GRANT SELECT, SHOW TABLES, SHOW COLUMNS, SHOW DICTIONARIES, dictGet ON {DATABASE}.*",
    "GRANT SELECT ON information_schema.*",
    "GRANT SELECT ON INFORMATION_SCHEMA.*",
    *(f"GRANT SELECT ON system.{table}" for table in _SYSTEM_TABLES),
)
_WRITES = (f"GRANT ALL ON {DATABASE}.*", "GRANT SELECT ON *.*")

# The server uses those of its default profile for every connection, before it knows the user. A request that pauses for
# longer, or a client that does not read its result, loses the connection. The others are of the native protocol.
_TIMEOUTS = {
    "http_receive_timeout": 10,
    "http_send_timeout": 30,
    "receive_timeout": 30,
    "send_timeout": 30,
    "idle_connection_timeout": 60,
}

_MIB, _GIB = 1 << 20, 1 << 30
_READER_S, _READER_MAX_S = 60, 300
_READER_RESULT_BYTES = 2 * _GIB
_QUERIES = {"readers": 32, "pages": 16}  # that run at once; further ones wait for their turn
_WAITING = 128  # of each
_READER_THREADS = 8  # that readers may ask for, however few are the default
_READER_UNTRACKED_BYTES = _MIB  # per thread: not counted by any limit on memory


def workloads(memory_bytes: int) -> dict[str, str]:
    """Statements by the name of their file: how many queries of readers and of pages run and wait.

    A query that waits is not refused, as it is with max_concurrent_queries_for_user. The queries of a workload take
    turns on as many threads as fit into cores and memory. Other users (the writer: ingestion and jobs) have no such
    limits.
    """
    return {
        "resource_queries": "CREATE RESOURCE queries (QUERY)",
        "resource_cpu": "CREATE RESOURCE cpu (MASTER THREAD, WORKER THREAD)",
        "workload_everyone": "CREATE WORKLOAD everyone",
        **{
            f"workload_{name}": f"CREATE WORKLOAD {name} IN everyone"
            f" SETTINGS max_concurrent_queries = {most}, max_waiting_queries = {_WAITING},"
            f" max_concurrent_threads = {threads(memory_bytes)}"
            for name, most in _QUERIES.items()
        },
    }


def pages_password(writer_password: str) -> str:
    """Of PAGES: who has the writer's password needs no other secret."""
    return hashlib.sha256(f"{PAGES}:{writer_password}".encode()).hexdigest()


def users_document(writer_password: str, reader_password: str, memory_bytes: int) -> dict[str, Any]:
    """The content of the users file.

    A client that names no user is `default`, a reader. Readers without a password connect from this machine only;
    `headroom_reader` connects from anywhere once it has a password.
    """
    reader = {"profile": "reader", "quota": "default", "default_database": DATABASE, "grants": {"query": list(_READS)}}
    local = {"no_password": "", "networks": {"ip": list(_LOOPBACK)}}
    remote = {**_password(reader_password), "networks": {"ip": _EVERYWHERE}}
    return {
        # Users may switch to any profile that changes no setting fixed for them. `readonly` is set in each profile, so
        # that a reader cannot switch away from its constraints.
        "profiles": {
            BASE_PROFILE: {"readonly": 0, "session_timezone": "UTC", **_TIMEOUTS},
            "writer": {
                "profile": BASE_PROFILE,
                "readonly": 0,
                "max_partitions_per_insert_block": 1000,
                "max_threads": threads(memory_bytes),  # the server's own default is one for each core
            },
            "reader": {"profile": BASE_PROFILE, **_reader_profile("readers", memory_bytes // 2, threads(memory_bytes))},
            "pages": {"profile": BASE_PROFILE, **_reader_profile("pages", memory_bytes // 4, threads(memory_bytes))},
        },
        "quotas": {"default": ""},
        "users": {
            "default": {**local, **reader},
            READER: {**(remote if reader_password else local), **reader},
            PAGES: {
                **_password(pages_password(writer_password)),
                "networks": local["networks"],
                **reader,
                "profile": "pages",
            },
            WRITER: {
                **_password(writer_password),
                "networks": {"ip": _EVERYWHERE},
                "profile": "writer",
                "quota": "default",
                "grants": {"query": list(_WRITES)},
            },
        },
    }


def _reader_profile(workload: str, memory_bytes: int, default_threads: int) -> dict[str, Any]:
    """`readonly = 2`: SELECT with settings, as JDBC and Grafana send them, within the constraints.

    0 means "no limit" for each of the limits, so each has a minimum, too.
    """
    number_of_threads = (default_threads, max(default_threads, _READER_THREADS))
    all_queries = _QUERIES[workload] + _WAITING
    limits = {
        "max_memory_usage": (memory_bytes // 2, memory_bytes),
        "max_memory_usage_for_user": (memory_bytes, memory_bytes),
        "max_execution_time": (_READER_S, _READER_MAX_S),
        "max_result_bytes": (_READER_RESULT_BYTES, _READER_RESULT_BYTES),
        "max_temporary_data_on_disk_size_for_query": (_GIB, _GIB),
        "max_temporary_data_on_disk_size_for_user": (2 * _GIB, 2 * _GIB),
        "max_concurrent_queries_for_user": (all_queries, all_queries),
        "max_untracked_memory": (_READER_UNTRACKED_BYTES, _READER_UNTRACKED_BYTES),
        "max_threads": number_of_threads,
        "max_final_threads": number_of_threads,
        "max_threads_for_indexes": number_of_threads,
        "max_parsing_threads": number_of_threads,
        "max_parser_backtracks": (1_000_000, 1_000_000),
        "max_query_size": (1 << 18, 1 << 24),
        "max_parser_depth": (1000, 1000),
        "max_ast_depth": (1000, 1000),
        "max_ast_elements": (50_000, 500_000),
        "max_expanded_ast_elements": (500_000, 500_000),
    }
    fixed = {
        "allow_ddl": 0,
        "workload": workload,
        "allow_introspection_functions": 0,
        "result_overflow_mode": "throw",
        "timeout_overflow_mode": "throw",
        "add_http_cors_header": 0,  # with this or the next setting, a page of another site could read responses
        "http_response_headers": "{}",
    }
    return {
        "readonly": 2,
        **{name: value for name, (value, _) in limits.items()},
        **fixed,
        "constraints": {
            **{name: {"min": 1, "max": most} for name, (_, most) in limits.items()},
            **{name: {"min": 1, "max": _READER_MAX_S} for name in _TIMEOUTS},
            **{name: {"const": ""} for name in fixed},
        },
    }


def _password(password: str) -> dict[str, str]:
    return {"password_sha256_hex": hashlib.sha256(password.encode()).hexdigest()}


def writer_password(file: Path) -> str:
    """The password in the file; creates the file with a new password if it does not exist. Raises OSError."""
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        password = secrets.token_hex(32)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as new:
        new.write(password + "\n")
        new.flush()
        os.fsync(new.fileno())
    return password
