"""What is tried before the first row is stored: one server or several, results that break off, tokens, rights.

A profile that cannot work is refused by each connection: see profile.py.

`headroom serve` refuses what would lose, double or split rows; `headroom store check` reports all.
"""

import base64
import http.client
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import ANY_DATABASE, Endpoint, proxy_of
from exporters.clickhouse.errors import StoreAwayError, StoreError, StoreLoginError, StoreSettingError
from exporters.clickhouse.ping import connection_to
from exporters.clickhouse.profile import SHARING_ENGINES
from exporters.findings import Finding

_CONNECTIONS = 8  # a balancer that chooses at random sends all of them to one of two servers once in 128 times
_TIMEOUT_S = 5.0
_MAX_SKEW_S = 2.0
_MIDDLE = "an error in the middle"
# The error comes after some MB of result, when a server has begun to answer with a status of success.
_CUT = f"SELECT throwIf(number = 90000, '{_MIDDLE}') AS zero, repeat('x', 100) AS filler FROM numbers(100000)"  # noqa: S608
_ENGINES = """
SELECT (SELECT any(engine) FROM system.databases WHERE name = {database:String}) AS engine,
       (SELECT count() FROM system.databases WHERE engine = 'Shared')
       + (SELECT count() FROM system.settings WHERE name = 'cloud_mode' AND value = '1') AS shared"""
_SERVER = "SELECT version() AS version, serverTimezone() AS zone, currentUser() AS user, toFloat64(now64(3)) AS now_s"
_PROBE = "CREATE TABLE {table} (`token` String) ENGINE = {engine} ORDER BY token SETTINGS {window} = 100"
_NOT_ENOUGH = "not enough for the storage worker: deploy/clickhouse/roles/writers.sql has the grants"
_GRANTS = "SELECT, INSERT, CREATE TABLE, CREATE VIEW, ALTER TABLE, DROP TABLE, DROP VIEW"


def refuse_several_servers(clickhouse: ClickHouse, cluster: str) -> None:
    """Raises StoreSettingError when the addresses lead to several servers that do not share their rows.

    `cluster`: store.cluster.name. `clickhouse` may be in any database but ANY_DATABASE.
    """
    nodes, database = clickhouse.nodes, clickhouse.database
    servers = {server for node in nodes for server in servers_behind(node)}
    if cluster or len(servers) < 2:
        return
    anywhere = replace(clickhouse, nodes=tuple(replace(node, database=ANY_DATABASE) for node in nodes))
    with closing(anywhere):
        (row,) = anywhere.rows(_ENGINES, {"database": database})
    if row["engine"] in SHARING_ENGINES or row["shared"]:
        return
    raise StoreSettingError(
        f"{len(servers)} servers answer at {', '.join(map(str, nodes))}, and they do not share their rows (engine of"
        f" database {database}: {row['engine'] or 'none yet'}): each would keep a part of them; name one server, or the"
        " nodes of a cluster with store.cluster.name (docs/clickhouse.md)"
    )


def servers_behind(node: Endpoint) -> set[str]:
    """The identities of the servers that new connections lead to; none when none says it, or a proxy is between."""
    if proxy_of(node):
        return set()
    headers = {"X-ClickHouse-User": node.user or "default"}
    if node.tls.certificate:
        headers["X-ClickHouse-SSL-Certificate-Auth"] = "on"
    else:
        pair = f"{node.user or 'default'}:{node.password}".encode()
        headers = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
    servers = set()
    with suppress(OSError, http.client.HTTPException, ValueError):
        for _ in range(_CONNECTIONS):
            with closing(connection_to(node, _TIMEOUT_S)) as connection:
                connection.request("POST", f"{node.path}/?default_format=TabSeparated", "SELECT serverUUID()", headers)
                response = connection.getresponse()
                text = response.read().decode(errors="replace").strip()
                servers |= {str(uuid.UUID(text))} if response.status == http.client.OK else set()
    return servers


def refuse_cut_results(clickhouse: ClickHouse) -> None:
    """Raises StoreSettingError when a result that breaks off looks like a whole one."""
    for read in (lambda: clickhouse.rows(_CUT), lambda: list(clickhouse.batches(_CUT))):
        try:
            read()
        except StoreAwayError:
            pass  # it broke off, and no error said why
        except StoreError as exc:
            if _MIDDLE not in str(exc):
                raise
        else:
            raise StoreSettingError(
                f"a result that breaks off in the middle looks whole behind {clickhouse.current}: a proxy between hides"
                " the error; connect to ClickHouse itself (docs/clickhouse.md)"
            )


def refuse_doubled_rows(clickhouse: ClickHouse, table: str) -> None:
    """Writes a row to a table of tokens, twice with the same token. Raises StoreSettingError when it counts otherwise
    than once, StoreError."""
    token = uuid.uuid4().hex
    for _ in range(2):
        clickhouse.insert(table, pa.table({"token": [token]}), token=token)
    counted = f"SELECT count() AS rows FROM {table} WHERE token = {{token:String}}"  # noqa: S608 - a table of ours
    (row,) = clickhouse.rows(counted, {"token": token})
    if row["rows"] > 1:
        raise StoreSettingError(
            f"rows that are sent again count twice at {clickhouse.current}: insert_deduplication_token does nothing"
        )
    if row["rows"] < 1:
        raise StoreSettingError(f"{clickhouse.current} confirmed one row and returns none: another replica answers")


def server_findings(nodes: Iterable[Endpoint], cluster: str) -> Iterator[Finding]:
    """All checks, of each node and then of the database."""
    reached = []
    for node in nodes:
        clickhouse = ClickHouse((replace(node, database=ANY_DATABASE),), _TIMEOUT_S * 4)
        with closing(clickhouse):
            findings = list(_of_node(clickhouse, node))
        yield from findings
        reached += [node] if all(finding.ok for finding in findings) else []
    if not reached:
        return
    whole = ClickHouse(tuple(reached), _TIMEOUT_S * 4, consistent=True)
    with closing(whole):
        yield _tried("one server answers, or several that share their rows", refuse_several_servers, whole, cluster)
        yield from _of_database(whole, reached[0], cluster)


def _of_node(clickhouse: ClickHouse, node: Endpoint) -> Iterator[Finding]:
    began_s = time.time()
    try:
        (server,) = clickhouse.rows(_SERVER)
    except StoreLoginError as exc:
        yield Finding(False, f"{node} accepts the user", str(exc))
    except StoreSettingError as exc:
        yield Finding(False, f"{node}: profile and proxy let statements have their settings", str(exc))
    except StoreError as exc:
        yield Finding(False, f"{node} answers as ClickHouse", str(exc))
    else:
        skew_s = server["now_s"] - (began_s + time.time()) / 2
        yield Finding(True, f"{node} is ClickHouse {server['version']}, time zone {server['zone']}")
        yield Finding(True, f"the profile of user {server['user']} lets statements have their settings")
        yield Finding(
            abs(skew_s) <= _MAX_SKEW_S,
            f"its clock and ours agree within {_MAX_SKEW_S:.0f} s",
            f"it is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}: minutes would be late or incomplete",
        )
        yield _tried("an error in the middle of a result is an error", refuse_cut_results, clickhouse)


def _of_database(clickhouse: ClickHouse, node: Endpoint, cluster: str) -> Iterator[Finding]:
    anywhere = ClickHouse((replace(node, database=ANY_DATABASE),), _TIMEOUT_S * 4)
    with closing(anywhere):
        (row,) = anywhere.rows(_ENGINES, {"database": node.database})
        yield from _rights(anywhere, node, exists=bool(row["engine"]))
    if not row["engine"]:
        yield Finding(
            True,
            f"database {node.database} does not exist yet",
            "the first start of `headroom serve` creates it, and tries whether rows that are sent again count once",
            is_note=True,
        )
        return
    yield Finding(True, f"database {node.database} has the engine {row['engine']}")
    if row["engine"] in SHARING_ENGINES:
        text = "jobs ask for rows that any replica confirmed (select_sequential_consistency)"
        yield Finding(True, f"replicas share the rows of database {node.database}", text, is_note=True)
    engine = "ReplicatedMergeTree" if row["engine"] == "Replicated" else "MergeTree"
    yield _tried("rows that are sent again count once", _try_tokens, clickhouse, engine)


def _rights(clickhouse: ClickHouse, node: Endpoint, *, exists: bool) -> Iterator[Finding]:
    """What the storage worker needs. CHECK GRANT says it of the user who asks."""
    rights = _GRANTS if exists else f"{_GRANTS}, CREATE DATABASE"
    what = f"the user may write: {rights} ON {node.database}.*"
    (row,) = clickhouse.rows("SELECT getSetting('readonly') AS readonly, getSetting('allow_ddl') AS allow_ddl")
    reason = "" if row["allow_ddl"] else "its profile has allow_ddl = 0, with which nobody may create tables"
    if row["readonly"]:
        reason = f"its profile has readonly = {row['readonly']}: a reader's, or {_NOT_ENOUGH}"
    if reason:
        yield Finding(False, what, reason)
        return
    try:
        (granted,) = clickhouse.rows(f"CHECK GRANT {rights} ON {node.database}.*")
    except StoreError as exc:
        yield Finding(True, f"not known: {what}", str(exc), is_note=True)
    else:
        yield Finding(bool(granted["result"]), what, _NOT_ENOUGH)


def _try_tokens(clickhouse: ClickHouse, engine: str) -> None:
    """In a table of its own, which it drops."""
    table = f"store_check_{uuid.uuid4().hex[:12]}"
    window = f"{'replicated' if engine.startswith('Replicated') else 'non_replicated'}_deduplication_window"
    clickhouse.command(_PROBE.format(table=table, engine=engine, window=window))
    try:
        refuse_doubled_rows(clickhouse, table)
    finally:
        with suppress(StoreError):
            clickhouse.command(f"DROP TABLE IF EXISTS {table} SYNC")


def _tried(what: str, check: Callable[..., None], *args: object) -> Finding:
    try:
        check(*args)
    except StoreError as exc:
        return Finding(False, what, str(exc))
    return Finding(True, what)
