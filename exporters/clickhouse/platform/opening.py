"""Opens a connection, and sets on it what our statements assume and the user's profile has otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreLoginError, StoreSettingError, is_without_schema, store_error
from exporters.clickhouse.platform.proxies import connection_pool
from exporters.clickhouse.platform.settings import (
    GREETING,
    limits_to_send,
    low_limits,
    refuse_fixed,
    settable,
    settings_to_send,
)

if TYPE_CHECKING:  # imported late: only a statement needs it, and it is slow
    from clickhouse_connect.driver.client import Client

SHARING_ENGINES = frozenset({"Replicated", "Shared"})  # of a database whose replicas have the same rows

_CONNECT_TIMEOUT_S = 10
_GREETING_LOCK = threading.Lock()
_BOUNDING = ("max_", "log_")  # settings that bound what a statement costs
_ARRIVING, _ARRIVED = "log_comment", "headroom"
_BOUNDS = "SELECT name, min, max FROM system.settings WHERE name IN {names:Array(String)}"
_ENGINE = "SELECT engine FROM system.databases WHERE name = currentDatabase()"


def connected(endpoint: Endpoint, timeout_s: float) -> Client:
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ClickHouseError
    from clickhouse_connect.driver.httpclient import HttpClient

    for library in ("clickhouse_connect", "urllib3"):  # they raise what they log; the import sets urllib3's level
        logging.getLogger(library).setLevel(logging.CRITICAL)

    def connect() -> Client:
        return clickhouse_connect.get_client(
            pool_mgr=connection_pool(endpoint),
            interface=endpoint.scheme,
            host=endpoint.host,
            port=endpoint.port,
            username=endpoint.user or "default",
            password=endpoint.password,
            database=endpoint.database,
            proxy_path=endpoint.path,
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=timeout_s,
            autogenerate_session_id=False,  # a session takes one query at a time
            show_clickhouse_errors="scrub",  # without the URL
            **cast(dict[str, Any], endpoint.tls.options() if endpoint.scheme == "https" else {}),
        )

    try:
        client = connect()
    except ClickHouseError as exc:
        failed = store_error(exc, str(endpoint), endpoint.user)
        if isinstance(failed, StoreLoginError) or is_without_schema(failed) or exc.__context__ is not None:
            raise
    else:
        if not client.server_settings or "session_timezone" in client.server_settings:
            return client
        client.close()
    # The library reads the profile before it sets anything, and this profile does not let it.
    with _GREETING_LOCK:
        http_client: Any = HttpClient
        before = http_client.params
        http_client.params = dict(GREETING)  # of all connections that are opened meanwhile
        try:
            return connect()
        finally:
            http_client.params = before


def allowed(client: Client, settings: Mapping[str, str], user: str) -> dict[str, str]:
    """Without those that bound what a statement costs, where the profile fixes these. Raises StoreSettingError."""
    bounding = {name: value for name, value in settings.items() if name.startswith(_BOUNDING)}
    meaning = {name: value for name, value in settings.items() if name not in bounding}
    refuse_fixed(client.server_settings, meaning, user)
    return {**meaning, **settable(client.server_settings, bounding)}


def agree(client: Client, endpoint: Endpoint, settings: Mapping[str, str], *, consistent: bool) -> None:
    """Sets what our statements assume and the profile has otherwise, for all statements of the connection.

    Raises StoreSettingError, ClickHouseError.
    """
    server, user = client.server_settings, endpoint.user
    agreed = settings_to_send(server, user, str(client.server_tz))
    if low := low_limits(server):
        rows = client.query(_BOUNDS, {"names": low}).result_rows
        bounds = {name: (_number(lowest), _number(highest)) for name, lowest, highest in rows}
        agreed |= limits_to_send(server, bounds)
    agreed |= allowed(client, settings, user)
    if consistent and client.command(_ENGINE) in SHARING_ENGINES:
        agreed |= settable(server, {"select_sequential_consistency": "1"})
    for name, value in agreed.items():
        client.set_client_setting(name, value)
    if settable(server, {_ARRIVING: ""}):
        text = f"SELECT getSetting('{_ARRIVING}')"
        if client.command(text, settings={_ARRIVING: _ARRIVED}) != _ARRIVED:
            raise StoreSettingError(
                f"settings of statements do not reach the server behind {endpoint}: a proxy between drops them, as"
                " chproxy does; rows that are sent again would count twice, so connect to ClickHouse itself"
                " (docs/clickhouse.md)"
            )


def _number(bound: str | None) -> int | None:
    return int(bound) if bound and bound.isdecimal() else None
