"""The managed server's configuration: paths, listeners, limits on memory and threads, HTTP rules.

Names and meanings: ClickHouse 25.8, programs/server/config.xml and src/Core/ServerSettings.cpp.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from exporters.clickhouse.connection import SECRET_MACRO
from exporters.clickhouse.managed.access import BASE_PROFILE

_MIB = 1 << 20

# An address in a Host header is safe, because DNS cannot rebind it; names must be configured.
_HOST = r"regex:^(?:localhost|[0-9.]+|\[[0-9a-fA-F:.]+\]{names})(?::[0-9]+)?$"
# Browsers add these headers to requests; those from pages of other sites are refused. Programs send neither.
_SAME_SITE = "regex:^(?:|none|same-origin)$"
_SAME_ORIGIN = r"regex:^(?:|https?://(?:localhost|[0-9.]+|\[[0-9a-fA-F:.]+\]{names})(?::[0-9]+)?)$"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Options of a managed server."""

    directory: Path  # absolute; all its files are below
    host: str = "127.0.0.1"
    http_port: int = 0  # 0: a free one
    native_port: int = 0
    host_names: tuple[str, ...] = ()  # accepted names in Host headers, besides localhost and addresses
    memory_bytes: int = 2048 * _MIB
    reader_password: str = field(default="", repr=False)  # "": readers connect from this machine only
    program: Path | None = None

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def workloads(self) -> Path:
        """A file for each resource and workload, which the server reads when it starts."""
        return self.store / "workload"

    @property
    def password_file(self) -> Path:
        """The writer's password, mode 0600."""
        return self.directory / "writer.password"

    @property
    def users_file(self) -> Path:
        return self.directory / "users.xml"

    @property
    def error_log(self) -> Path:
        return self.directory / "log" / "error.log"


def server_document(settings: ServerSettings, http_port: int, native_port: int) -> dict[str, Any]:
    return {
        # System log tables grow and are never read: none is enabled. `files` and `schemas` stay empty.
        "path": f"{settings.store}/",
        "workload_path": f"{settings.workloads}/",
        "tmp_path": f"{settings.store}/tmp/",  # noqa: S108 below our directory
        "user_files_path": f"{settings.directory}/files/",
        "format_schema_path": f"{settings.directory}/schemas/",
        "users_config": str(settings.users_file),
        "default_profile": BASE_PROFILE,
        "umask": "077",  # the server's own default lets the group read
        "logger": {
            "level": "warning",
            "log": str(settings.error_log.with_name("server.log")),
            "errorlog": str(settings.error_log),
            "size": "10M",
            "count": 2,
        },
        "listen_host": settings.host,
        "http_port": http_port,
        "tcp_port": native_port,
        "listen_reuse_port": 1,  # the parent reserves the ports while the server is down
        "http_handlers": {"rule": _http_rules(settings.host_names)},
        "keep_alive_timeout": 30,
        "timezone": "UTC",
        "display_name": "headroom",
        "macros": {SECRET_MACRO: str(settings.password_file)},
        "send_crash_reports": {"enabled": 0},
        "access_control_improvements": {
            "select_from_system_db_requires_grant": 1,
            "select_from_information_schema_requires_grant": 1,
            "settings_constraints_replace_previous": 1,
        },
        **_limits(settings.memory_bytes),
    }


def _limits(memory_bytes: int) -> dict[str, Any]:
    """Two merges at a time, and caches that fit the memory limit."""
    return {
        "max_server_memory_usage": memory_bytes,
        "merges_mutations_memory_usage_soft_limit": memory_bytes // 4,
        "mark_cache_size": 64 * _MIB,
        "index_mark_cache_size": 16 * _MIB,
        "index_uncompressed_cache_size": 0,
        "uncompressed_cache_size": 0,
        "compiled_expression_cache_size": 16 * _MIB,
        "query_cache": {"max_size_in_bytes": 16 * _MIB},  # readers fill it
        "max_session_timeout": 300,
        "max_temporary_data_on_disk_size": 4 * memory_bytes,
        "cpu_slot_preemption": "true",  # threads of a workload take turns
        "max_concurrent_queries": 512,  # with those that wait for their turn (access.workloads)
        # Each connection has a thread, also while its request is incomplete; further connections wait for one.
        "max_connections": 1024,
        "max_thread_pool_size": 1536,
        "max_io_thread_pool_size": 16,
        "background_pool_size": 2,
        "background_merges_mutations_concurrency_ratio": 2,
        "background_move_pool_size": 1,
        "background_fetches_pool_size": 1,
        "background_common_pool_size": 2,
        "background_buffer_flush_schedule_pool_size": 1,
        "background_schedule_pool_size": 8,
        "background_message_broker_schedule_pool_size": 1,
        "background_distributed_schedule_pool_size": 1,
        "os_threads_nice_value_merge_mutate": 5,
        "asynchronous_metrics_update_period_s": 10,
        "async_insert_threads": 0,  # no async inserts: the threads of their queue wake up 100 times a second each
        "merge_tree": {
            "number_of_free_entries_in_pool_to_execute_mutation": 1,
            "number_of_free_entries_in_pool_to_lower_max_size_of_merge": 1,
            "number_of_free_entries_in_pool_to_execute_optimize_entire_partition": 1,
        },
    }


def _http_rules(host_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """HTTP rules. Requests that match none get 404: other paths and methods, unknown hosts, pages of other sites."""
    names = "".join(f"|{re.escape(name)}" for name in host_names)
    headers = {"Host": _HOST.format(names=names)}
    of_pages = {"Sec-Fetch-Site": _SAME_SITE, "Origin": _SAME_ORIGIN.format(names=names)}
    okay = {"type": "static", "status": 200, "content_type": "text/plain; charset=UTF-8", "response_content": "Ok.\n"}
    query = {"type": "dynamic_query_handler", "query_param_name": "query"}
    return [
        {"url": "/ping", "methods": "GET,HEAD", "headers": headers, "handler": okay},
        {"url": "/", "methods": "GET,HEAD", "empty_query_string": "", "headers": headers, "handler": okay},
        {"url": "/", "methods": "GET,POST", "headers": {**headers, **of_pages}, "handler": query},
    ]


def write_document(file: Path, content: dict[str, Any]) -> None:
    """Replaces the file atomically. Mode 0600, because the users file holds password hashes. Raises OSError.

    The server in the chdb wheel is built without YAML, so the file is XML.
    """
    root = Element("clickhouse")
    _fill(root, content)
    indent(root)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(tostring(root, encoding="utf-8"))
    new.replace(file)


def _fill(element: Element, content: dict[str, Any]) -> None:
    """A list repeats its element, a mapping nests, other values become text."""
    for name, value in content.items():
        for item in value if isinstance(value, list) else [value]:
            child = SubElement(element, name)
            if isinstance(item, dict):
                _fill(child, item)
            else:
                child.text = str(item)
