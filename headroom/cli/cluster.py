"""Shared by commands that query a cluster or the store: options, connection, error messages."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint, password_of, tls_of
from exporters.clickhouse.errors import advice
from headroom.cli.options import fail
from headroom.errors import ArgumentError
from quota_metrics.config.json_file import QuotaFileError
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.bootstrap_servers import BootstrapError, check_protocol, parse_bootstrap_servers
from quota_metrics.kafka.errors import BrokerUnreachableError, ClusterError, PropertiesError
from quota_metrics.kafka.properties import protocol_of, read_properties, security
from telemetry.wire.errors import InvalidSubscriptionError

T = TypeVar("T")

CommandConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Properties of a Kafka client: security.protocol, sasl.*, ssl.*.")
]
TimeoutMs = Annotated[int, typer.Option(help="For each request.", min=1)]


def asked(
    ask: Callable[[KafkaAdmin], Coroutine[Any, Any, T]],
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int,
) -> T:
    """Runs `ask` with a client of HOST:PORT[,HOST:PORT]. Raises ClusterError, ArgumentError, PropertiesError."""
    try:
        servers = parse_bootstrap_servers(bootstrap_server)
        properties = {} if command_config is None else read_properties(command_config)
        check_protocol(servers, protocol_of(properties))
    except BootstrapError as exc:
        raise ArgumentError(str(exc)) from exc
    addresses, how = [(server.host, server.port) for server in servers], security(properties)

    async def run() -> T:
        async with aclosing(KafkaAdmin(addresses, timeout_ms=timeout_ms, security=how)) as admin:
            return await ask(admin)

    return asyncio.run(run())


def clickhouse_of(url: str, timeout_s: float = 30.0) -> ClickHouse:
    """The store at a URL, with the password of the environment. Raises ArgumentError."""
    try:
        endpoint = Endpoint.parse(url, password_of(os.environ), tls_of(os.environ))
    except (ValueError, OSError) as exc:
        raise ArgumentError(str(exc)) from exc
    return ClickHouse((endpoint,), timeout_s=timeout_s)


def utf8(name: str) -> str:
    """A name of the command line. Raises ArgumentError when its bytes were not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise ArgumentError(f"{name!r} is not UTF-8") from exc
    return name


@contextmanager
def reported_in_one_line() -> Iterator[None]:
    """Exits with 1 when the cluster or the store fails or refuses, with 2 when an argument is invalid."""
    try:
        yield
    except BrokenPipeError:
        raise  # of who reads the output; typer exits with 1
    except (ClusterError, ConnectionError) as exc:
        refused = isinstance(exc, BrokerUnreachableError) and str(exc).endswith("Connection refused")
        where = "; check the address, and that a broker or `headroom serve` listens there" if refused else ""
        raise fail(f"{exc}{advice(exc)}{where}") from exc
    except (ArgumentError, QuotaFileError, PropertiesError, InvalidSubscriptionError) as exc:
        raise fail(str(exc), code=2) from exc
