"""The command line: `headroom serve | sql | top | status | demo`, and groups of further commands.

Heavy imports are inside the commands, so that `headroom --help` is fast; tests/headroom/cli/test_main.py checks that.
"""

import errno
import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from headroom.cli.options import HTTP, URL, HttpAddress, Output, TableOrJson, Url, fail
from headroom.errors import ArgumentError, ServeError

_EXTRA_OF = {
    "chdb": "embedded",
    "altair": "spark",
    "pandas": "spark",
    "py4j": "spark",
    "pyspark": "spark",
    "vl_convert": "spark",
    "confluent_kafka": "demo",
}
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# The module that has the Typer `app` of a group, and its line in `headroom --help`.
GROUPS = {
    "quotas": ("headroom.cli.quotas", "Client quotas: show, resolve and change them, simulate changes."),
    "subscriptions": (
        "headroom.cli.subscriptions",
        "Telemetry subscriptions: which metrics clients are asked for, how often.",
    ),
    "quarantine": ("headroom.cli.quarantine", "Pushes that could not be stored: list, show, replay."),
    "spool": ("headroom.cli.spool", "The spool between the network processes and the store."),
    "verify-client": ("headroom.cli.verify_client", "Check a Kafka client's telemetry against KIP-714."),
    "plan": ("headroom.cli.plan", "Gateways, cores, memory, disk and network for N clients."),
    "gateway": ("headroom.cli.gateway", "Check a cluster for a gateway; share of traffic that passes it."),
    "store": ("headroom.cli.store", "Check a ClickHouse before the first row is stored."),
    "cluster": (
        "headroom.cli.cluster_facts",
        "The cluster: versions, quota windows, callback class, limits per address.",
    ),
    "config": ("headroom.cli.config", "Settings of headroom serve: check, show, explain."),
    "job": ("spark_jobs.cli", "Spark jobs over the collected data."),
}


class LazyGroups(TyperGroup):
    """The top-level group: declared commands, and groups imported by name: `headroom --help` imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands first, in order of declaration."""
        return [*super().list_commands(ctx), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in GROUPS:
            return super().get_command(ctx, cmd_name)
        module, _ = GROUPS[cmd_name]
        app: typer.Typer = importlib.import_module(module).app
        app.rich_markup_mode = None  # rich takes longer to import than the rest of the help
        app._add_completion = False  # the top level has it
        command = typer.main.get_command(app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Formats the list like click, without importing groups for their help lines."""
        own = {name: super(LazyGroups, self).get_command(ctx, name) for name in super().list_commands(ctx)}
        lines = [(name, command.get_short_help_str(limit=90)) for name, command in own.items() if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl([*lines, *((name, line) for name, (_, line) in GROUPS.items())])


app = typer.Typer(
    name="headroom",
    cls=LazyGroups,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headroom.version import version_line

        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and build, and exit."),
    ] = False,
) -> None:
    """Which Kafka clients are about to be throttled, by which quota, and what it feels like from their side."""


# Longer than other functions, because typer requires a parameter for each flag.
@app.command()
def serve(
    listen: Annotated[str | None, typer.Option(help="Kafka endpoint, the address clients bootstrap from.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Brokers to proxy: HOST:PORT[,HOST:PORT].")] = None,
    observe: Annotated[str | None, typer.Option(help="Brokers to observe instead, out of the data path.")] = None,
    processes: Annotated[int | None, typer.Option(help="Network processes that accept clients; 1 by default.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster; by default the cluster's id.")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Directory of the ClickHouse server and the spool.")
    ] = None,
    clickhouse: Annotated[
        str | None, typer.Option(help="A ClickHouse server instead: http(s)://user@host:8123/headroom.")
    ] = None,
    sql: Annotated[str | None, typer.Option(help="HTTP address of the ClickHouse server over --data.")] = None,
    http: Annotated[str | None, typer.Option(help="HTTP address of the pages, /metrics and the probes.")] = None,
    grpc: Annotated[
        str | None, typer.Option(help="gRPC server for broker plug-ins and sidecars; by default none.")
    ] = None,
    security_protocol: Annotated[
        str | None,
        typer.Option(help="What clients speak to the listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="The listener's certificate with its chain, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="CA of client certificates, PEM.")] = None,
    tls_client_auth: Annotated[
        str | None, typer.Option(help="Client certificates: none, requested or required.")
    ] = None,
    command_config: Annotated[
        Path | None,
        typer.Option(
            help="Kafka client properties: how Headroom reaches the brokers, and TLS of upstream connections."
        ),
    ] = None,
    gateway_id: Annotated[
        str | None, typer.Option(help="This gateway in quota_usage.gateway_id; by default the host name.")
    ] = None,
    otlp_grpc: Annotated[str | None, typer.Option(help="OTLP/gRPC receiver, usually :4317; by default none.")] = None,
    otlp_http: Annotated[str | None, typer.Option(help="OTLP/HTTP receiver, usually :4318; by default none.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file; flags and HEADROOM_* override it.")] = None,
) -> None:
    """Run a gateway for a cluster: answer client telemetry, observe throttling on the wire, store both."""
    listener = {
        "security_protocol": security_protocol,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "tls_client_auth": tls_client_auth,
    }
    flags = {
        "listen": listen,
        "upstream": upstream,
        "observe": observe,
        "processes": processes,
        "cluster": cluster,
        "data": data,
        "clickhouse": clickhouse,
        "sql": sql,
        "http": http,
        "grpc": grpc and {"listen": grpc},
        "command_config": command_config,
        "listener": {name: value for name, value in listener.items() if value is not None} or None,
        "gateway": None if gateway_id is None else {"id": gateway_id},
        "otlp": {name: address for name, address in (("grpc", otlp_grpc), ("http", otlp_http)) if address} or None,
    }
    raise typer.Exit(_run_service(config, flags))


def _run_service(config: Path | None, flags: dict[str, Any]) -> int:
    from headroom.config.settings import ConfigError
    from headroom.config.sources import load
    from headroom.server.app import run

    try:
        return run(partial(load, config, flags))
    except ConfigError as exc:
        raise fail(*exc.faults, code=2) from exc
    except ServeError as exc:
        raise fail(str(exc)) from exc


@app.command(context_settings={"ignore_unknown_options": True})  # SQL may begin with a comment: "-- ..."
def sql(
    query: Annotated[str, typer.Argument(help="SQL.")],
    url: Url = URL,
    format: Annotated[str | None, typer.Option(help="Any ClickHouse format.")] = None,
) -> None:
    """Run SQL; prints a table on a terminal, TSV in a pipe. Password: HEADROOM_CLICKHOUSE_PASSWORD(_FILE)."""
    from headroom.cli.sql import run_sql

    raise typer.Exit(run_sql(query, url, format, os.environ))


@app.command()
def top(
    http: HttpAddress = HTTP,
    cluster: Annotated[str, typer.Option(help="Of this cluster only.")] = "",
    level: Annotated[str, typer.Option(help="At these levels only, as in warn,critical,throttled.")] = "",
    user: Annotated[str, typer.Option(help="Of this user only.")] = "",
    client_id: Annotated[str, typer.Option(help="This client id only.")] = "",
    team: Annotated[str, typer.Option(help="Of this team only, by the setting owners; unowned: of none.")] = "",
    token: Annotated[
        str, typer.Option(help="Of an application (web.tokens): show what it may see of its own; @FILE reads it there.")
    ] = "",
    by: Annotated[
        Literal["client", "user", "team", "rule", "topic", "cost"],
        typer.Option(
            help="A line for each client, user, team or rule; or, once, for each topic of a client in the last hour,"
            " or each payer of telemetry."
        ),
    ] = "client",
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between refreshes.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit; the default in a pipe.")] = False,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show clients near a limit, refreshed until q: / filters, s sorts, g groups, Enter shows one, p pauses."""
    from headroom.cli.serve_api import token_of
    from headroom.cli.top.live import run_costs, run_top, run_topics

    if by in ("cost", "topic") and token:
        raise fail(f"an application does not see that: --by {by} goes without --token", code=2)
    if by == "topic" and level:
        raise fail("topics have no level: --by topic goes without --level", code=2)
    query = {"cluster": cluster, "level": level, "user": user, "client_id": client_id, "team": team}
    if by == "cost" and any(query.values()):
        raise fail("payers are of all clusters and clients: --by cost goes without filters", code=2)
    as_json = output is Output.JSON
    with _asks_serve():
        if by == "cost":
            run_costs(http, as_json=as_json)
        elif by == "topic":
            run_topics(http, query, as_json=as_json)
        else:
            group, shown_token = "" if by == "client" else by, token_of(token)
            run_top(http, query, interval_s=interval, once=once, as_json=as_json, group=group, token=shown_token)


@app.command()
def status(
    http: HttpAddress = HTTP,
    raw: Annotated[bool, typer.Option("--raw", help="Headroom's own metrics instead of five lines.")] = False,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show Headroom's health. Exit 0, 1 when something is late or dropped, 3 when it does not answer."""
    from headroom.cli.status import run_status

    with _asks_serve():
        raise typer.Exit(run_status(http, as_json=output is Output.JSON, raw=raw))


@contextmanager
def _asks_serve() -> Iterator[None]:
    """Exits with 2 for an invalid argument, with 3 when `headroom serve` does not answer."""
    try:
        yield
    except ArgumentError as exc:
        raise fail(str(exc), code=2) from exc
    except BrokenPipeError:
        raise  # of who reads the output; typer exits with 1
    except ConnectionError as exc:
        raise fail(str(exc), code=3) from exc


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Directory of the report.")] = Path("demo-output"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
) -> None:
    """Run a real broker and real clients, some of them throttled, and report on them."""
    from headroom.demo.run import run_demo

    raise typer.Exit(run_demo(output, keep=keep))


def missing_extra(exc: ModuleNotFoundError) -> str | None:
    """The advice for a missing optional dependency; None when the module belongs to no extra."""
    module = (exc.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    return extra and f"{module} is not installed: pip install 'headroom[{extra}]'"


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may have characters that the encoding of the output has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:
        os._exit(130)
    except ModuleNotFoundError as exc:
        if (message := missing_extra(exc)) is None:
            raise
        fail(message)
        sys.exit(2)
    except OSError as exc:
        if exc.errno not in _OUTPUT_ERRORS:
            raise
        fail(f"cannot write: {exc.strerror}")
        os._exit(1)  # an exit that flushes would fail again
