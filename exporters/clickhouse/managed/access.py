"""The managed server's users: one writer, readers, and the limits of readers."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

from exporters.clickhouse.connection import DATABASE, WRITER

READER = "headroom_reader"
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
_READER_QUERIES = 16
_CORES = os.cpu_count() or 1  # the server's own default
_READER_THREADS = max(8, _CORES)
_READER_UNTRACKED_BYTES = _MIB  # per thread: not counted by any limit on memory


def users_document(writer_password: str, reader_password: str, memory_bytes: int) -> dict[str, Any]:
    """The content of the users file.

    A client that names no user is `default`, a reader. Readers without a password connect from this machine only;
    `headroom_reader` connects from anywhere once it has a password.
    """
    reader = {"profile": "reader", "quota": "default", "default_database": DATABASE, "grants": _queries(_READS)}
    local = {"no_password": "", "networks": {"ip": list(_LOOPBACK)}}
    remote = {**_password(reader_password), "networks": {"ip": _EVERYWHERE}}
    return {
        # Users may switch to any profile that changes no setting fixed for them. `readonly` is set in each profile, so
        # that a reader cannot switch away from its constraints.
        "profiles": {
            BASE_PROFILE: {"readonly": 0, "session_timezone": "UTC", **_TIMEOUTS},
            "writer": {"profile": BASE_PROFILE, "readonly": 0, "max_partitions_per_insert_block": 1000},
            "reader": {"profile": BASE_PROFILE, **_reader_profile(memory_bytes // 2)},
        },
        "quotas": {"default": ""},
        "users": {
            "default": {**local, **reader},
            READER: {**(remote if reader_password else local), **reader},
            WRITER: {
                **_password(writer_password),
                "networks": {"ip": _EVERYWHERE},
                "profile": "writer",
                "quota": "default",
                "grants": _queries(_WRITES),
            },
        },
    }


def _reader_profile(memory_bytes: int) -> dict[str, Any]:
    """`readonly = 2`: SELECT with settings, as JDBC and Grafana send them, within the constraints.

    0 means "no limit" for each of the limits, so each has a minimum, too.
    """
    limits = {
        "max_memory_usage": (memory_bytes // 2, memory_bytes),
        "max_memory_usage_for_user": (memory_bytes, memory_bytes),
        "max_execution_time": (_READER_S, _READER_MAX_S),
        "max_result_bytes": (_READER_RESULT_BYTES, _READER_RESULT_BYTES),
        "max_temporary_data_on_disk_size_for_query": (_GIB, _GIB),
        "max_temporary_data_on_disk_size_for_user": (2 * _GIB, 2 * _GIB),
        "max_concurrent_queries_for_user": (_READER_QUERIES, _READER_QUERIES),
        "max_untracked_memory": (_READER_UNTRACKED_BYTES, _READER_UNTRACKED_BYTES),
        "max_threads": (_CORES, _READER_THREADS),
        "max_final_threads": (_CORES, _READER_THREADS),
        "max_threads_for_indexes": (_CORES, _READER_THREADS),
        "max_parsing_threads": (_CORES, _READER_THREADS),
        "max_parser_backtracks": (1_000_000, 1_000_000),
        "max_query_size": (1 << 18, 1 << 24),
        "max_parser_depth": (1000, 1000),
        "max_ast_depth": (1000, 1000),
        "max_ast_elements": (50_000, 500_000),
        "max_expanded_ast_elements": (500_000, 500_000),
    }
    fixed = {
        "allow_ddl": 0,
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


def _queries(grants: tuple[str, ...]) -> dict[str, Any]:
    return {"query": list(grants)}


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
