"""Checks the files that settings name, and settings that exclude each other, before `headroom serve` opens anything."""

from collections.abc import Callable, Iterator
from functools import partial

from exporters.clickhouse import schema
from exporters.clickhouse.managed.server import ServerError, find_program
from exporters.printable import printable
from headroom.config.settings import ServeConfig
from headroom.errors import ServeError
from headroom.owners import owners_of
from headroom.server.pages import web_scopes, web_token
from headroom.server.processes.assembly import loaded_subscriptions, new_rules
from headroom.server.processes.security import broker_security, listener_security


def startup_faults(config: ServeConfig) -> list[str]:
    """One line for each file that cannot be used and for each contradiction."""
    faults = []
    for check in _checks(config):
        try:
            check()
        except (ServeError, ServerError) as exc:
            faults.append(str(exc))
    return list(dict.fromkeys(faults))  # each listener reports a fault of command_config


def _checks(config: ServeConfig) -> Iterator[Callable[[], object]]:
    yield partial(broker_security, config)
    for listener in (config.listener, *config.listeners):
        yield partial(listener_security, config, listener)
    yield partial(web_token, config)
    yield partial(web_scopes, config)
    if config.forward.endpoint is not None:
        yield partial(_check_forward_files, config)
    if config.subscriptions is not None:
        yield partial(loaded_subscriptions, config.subscriptions, new_rules(config.telemetry))
    yield partial(owners_of, config.owners)
    yield partial(_check_retention, config)
    if config.clickhouse is None:
        yield partial(_check_directory, config)
    if config.store.server.program is not None and config.clickhouse is None:
        yield partial(find_program, config.store.server.program)
    receivers = {
        "grpc": config.grpc if config.grpc.listen else None,
        "otlp": config.otlp if config.otlp.grpc or config.otlp.http else None,
    }
    for name, receiver in receivers.items():
        if receiver is not None:
            from headroom.server.listeners.receivers import tls_of, tokens_of  # imports gRPC, which takes 20 MB

            yield partial(tokens_of, receiver, name)
            yield partial(tls_of, receiver, name)


def _check_forward_files(config: ServeConfig) -> None:
    for path in filter(None, (config.forward.ca, config.forward.certificate, config.forward.private_key)):
        try:
            path.read_bytes()
        except OSError as exc:
            raise ServeError(f"cannot forward: cannot read {path}: {exc.strerror}") from exc


def _check_retention(config: ServeConfig) -> None:
    if wanted := config.store.retention_days:
        tables = schema.expiring_tables()
        for name in wanted:
            if name not in tables:
                raise ServeError(
                    f"store.retention_days.{name}: no table whose rows expire; these do: {', '.join(tables)}"
                )


def _check_directory(config: ServeConfig) -> None:
    """The managed server reads its paths from XML, and takes a backslash for a separator."""
    path = str(config.data.absolute())
    if not path.isprintable() or "\\" in path:
        raise ServeError(f"data: the ClickHouse server cannot use the path {printable(path)}")
