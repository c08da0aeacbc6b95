"""Checks the files that settings name, and settings that exclude each other, before `headroom serve` opens anything."""

from collections.abc import Callable, Iterator
from functools import partial

from exporters.clickhouse import schema
from exporters.clickhouse.managed.server import ServerError, find_program
from exporters.printable import printable
from headroom.config.settings import ConfigError, ServeConfig
from headroom.errors import ServeError
from headroom.owners import owners_of
from headroom.server.pages import web_scopes, web_token
from headroom.server.processes.assembly import loaded_subscriptions, new_rules
from headroom.server.processes.security import broker_security, listener_security, listener_tls


def checked(load: Callable[[], ServeConfig]) -> ServeConfig:
    """The settings that `load` reads. Raises ConfigError with its faults, and with one line for each file that cannot
    be used and each contradiction."""
    faults: list[str] = []
    wrong: frozenset[str] = frozenset()  # what depends on these settings is not checked
    config: ServeConfig | None
    try:
        config = load()
    except ConfigError as exc:
        config, faults, wrong = exc.rest, exc.faults, exc.wrong
    for settings, check in _checks(config) if config else ():
        if wrong.isdisjoint(settings.split()):
            try:
                check()
            except (ServeError, ServerError) as exc:
                faults.append(str(exc))
    if faults or config is None:
        raise ConfigError(list(dict.fromkeys(faults)))  # each listener reports a fault of command_config
    return config


def _checks(config: ServeConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each with the settings that it is about."""
    yield "command_config upstream observe", partial(broker_security, config)
    for listener in (config.listener, *config.listeners):
        yield "listener listeners", partial(listener_tls, listener)
        yield "listener listeners command_config upstream observe", partial(listener_security, config, listener)
    yield "web http", partial(web_token, config)
    yield "web http", partial(web_scopes, config)
    yield "forward", partial(_check_forward_files, config)
    if config.subscriptions is not None:
        rules = new_rules(config.telemetry)
        yield "subscriptions telemetry", partial(loaded_subscriptions, config.subscriptions, rules)
    yield "owners", partial(owners_of, config.owners)
    yield "store", partial(_check_retention, config)
    if config.clickhouse is None:
        yield "clickhouse data", partial(_check_directory, config)
    if config.store.server.program is not None and config.clickhouse is None:
        yield "clickhouse store", partial(find_program, config.store.server.program)
    for name, is_open, receiver in (
        ("grpc", config.grpc.listen, config.grpc),
        ("otlp", config.otlp.grpc or config.otlp.http, config.otlp),
    ):
        if is_open:
            from headroom.server.listeners.receivers import tls_of, tokens_of  # imports gRPC, which takes 20 MB

            yield name, partial(tokens_of, receiver, name)
            yield name, partial(tls_of, receiver, name)


def _check_forward_files(config: ServeConfig) -> None:
    for path in filter(None, (config.forward.ca, config.forward.certificate, config.forward.private_key)):
        try:
            path.read_bytes()
        except OSError as exc:
            raise ServeError(f"cannot forward: cannot read {path}: {exc.strerror}") from exc


def _check_retention(config: ServeConfig) -> None:
    names = config.store.retention_days
    tables = schema.expiring_tables() if names else []
    for name in names:
        if name not in tables:
            raise ServeError(f"store.retention_days.{name}: no table whose rows expire; these do: {', '.join(tables)}")


def _check_directory(config: ServeConfig) -> None:
    """The managed server reads its paths from XML, and takes a backslash for a separator."""
    path = str(config.data.absolute())
    if not path.isprintable() or "\\" in path:
        raise ServeError(f"data: the ClickHouse server cannot use the path {printable(path)}")
