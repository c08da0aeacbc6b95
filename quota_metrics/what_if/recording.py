"""Reads one cluster's recorded usage and limits. Raises ConnectionError.

The SQL leaves out clients that a change cannot affect: they neither match the changed entity nor share a user or client
id with a client that does. Some of the others are `quiet`: they were never throttled, and their rates stay below every
limit that the change may give them, even when added up over all clients of the user or of the client id. A broker
cannot have throttled them, whichever of them share the limit (ClientQuotaManager meters by user, by client id or both).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from exporters.clickhouse.client import ClickHouse, Row
from exporters.model import QuotaLimit
from quota_metrics.cluster.facts import before_3_8, release_of_text
from quota_metrics.config.entities import CLIENT_ID, USER, QuotaAlteration
from quota_metrics.simulation.outcomes import Seen
from quota_metrics.simulation.usage import BrokerWindow, BrokerWindows, ClientAtBroker, Recorded, recorded
from quota_metrics.windows import UNLIMITED, QuotaWindow

T = TypeVar("T")

TIMEOUT_S = 120.0  # of a query over a day of a large cluster
_PAIRS_PER_QUERY = 2_000  # their hashes are in the URL
_ROWS_PER_QUERY = 250_000
_MAX_ANSWER_BYTES = 256 << 20
_RECENT_MS = 6 * 3_600_000 - 300_000  # quota_usage_recent holds six hours

_DURING = """ts > fromUnixTimestamp64Milli({from_ms:Int64}) AND ts <= fromUnixTimestamp64Milli({to_ms:Int64})
    AND source = 'gateway' AND quota_key IN {keys:Array(String)}"""
_RECENT_DURING = (
    """minute >= toStartOfMinute(fromUnixTimestamp64Milli({from_ms:Int64}))
    AND minute <= fromUnixTimestamp64Milli({to_ms:Int64}) AND """
    + _DURING
)

_HAS_USAGE = "SELECT 1 AS one FROM {table} WHERE cluster = {{cluster:String}} AND {during} LIMIT 1"
_CLUSTERS = "SELECT DISTINCT cluster FROM {table} WHERE {during} ORDER BY cluster"

# Clients at a broker. Maxima are added up over gateways, so that a row that is stored twice does not count. By a number
# rows are added up in half of the time that the names take.
_SEEN = """
SELECT quota_key, user, client_id, broker_id, toString(pair) AS pair, rate_max, bytes_max, interval_ms,
       toFloat64(samples) AS samples, toFloat64(throttled) AS throttled, toFloat64(transferred) AS bytes, quiet,
       toFloat64(count() OVER ()) AS may_be_affected, toFloat64(sum(transferred) OVER ()) AS all_bytes,
       toFloat64(sum(quiet) OVER ()) AS all_quiet, toFloat64(everyone) AS everyone
FROM
(
    SELECT *, count() OVER () AS everyone, max(hit) OVER of_user OR max(hit) OVER of_client_id AS may_be,
           greatest(sum(highest) OVER of_user, sum(highest) OVER of_client_id) <= {{lowest:Float64}}
               AND throttled = 0 AS quiet
    FROM
    (
        SELECT any(seen_key) AS quota_key, any(seen_user) AS user, any(seen_client_id) AS client_id,
               any(seen_broker) AS broker_id, pair, sum(seen_rate) AS rate_max, sum(seen_bytes) AS bytes_max,
               min(seen_interval) AS interval_ms, sum(seen_samples) AS samples, sum(seen_throttled) AS throttled,
               sum(seen_transferred) AS transferred, {hit} AS hit,
               rate_max * {{share:Float64}} + bytes_max / {{full_s:Float64}} AS highest
        FROM
        (
            SELECT any(u.quota_key) AS seen_key, any(u.user) AS seen_user, any(u.client_id) AS seen_client_id,
                   any(u.broker_id) AS seen_broker, cityHash64(seen_key, seen_user, seen_client_id) AS pair,
                   max(ifNotFinite(u.rate, 0)) AS seen_rate, toFloat64(max(u.bytes)) AS seen_bytes,
                   min(if(u.interval_ms > 0, u.interval_ms, 1000)) AS seen_interval, count() AS seen_samples,
                   countIf(u.throttle_ms > 0 OR u.muted_ms > 0) AS seen_throttled, sum(u.bytes) AS seen_transferred
            FROM {table} AS u
            WHERE cluster = {{cluster:String}} AND {during}
            GROUP BY cityHash64(quota_key, user, client_id, broker_id, gateway_id)
        )
        GROUP BY pair, seen_broker
    )
    WINDOW of_user AS (PARTITION BY quota_key, user), of_client_id AS (PARTITION BY quota_key, client_id)
)
WHERE may_be
ORDER BY quiet, bytes DESC, quota_key, user, client_id, broker_id
LIMIT {{most:UInt64}}
"""
# Whether a rule of the user itself was in force all the time: then no rule with another user dimension applies.
_HAS_OWN_RULE = """user IN (
    SELECT user FROM quota_limits
    WHERE cluster = {cluster:String} AND quota_key IN {keys:Array(String)} AND user NOT IN ('', '<default>')
      AND client_id IN ('', '<default>') AND ip = ''
    GROUP BY quota_key, user, client_id
    HAVING isNotNull(argMaxIf(tuple(value), valid_from, valid_from <= fromUnixTimestamp64Milli({from_ms:Int64})).1)
       AND countIf(isNull(value) AND valid_from > fromUnixTimestamp64Milli({from_ms:Int64})) = 0 AND {one_key:UInt8}
)"""

# The rows of clients at a broker as columns, of all gateways together; a row counts once.
_USAGE = """
SELECT toString(pair) AS pair, broker_id, groupArray(toFloat64(at)) AS at, groupArray(spanned) AS spanned,
       groupArray(toFloat64(transferred)) AS transferred, groupArray(muted) AS muted, groupArray(longest) AS longest
FROM
(
    SELECT pair, broker_id, at, max(spanned) AS spanned, sum(transferred) AS transferred, max(muted) AS muted,
           max(longest) AS longest
    FROM
    (
        SELECT cityHash64(u.quota_key, u.user, u.client_id) AS pair, u.broker_id AS broker_id, u.gateway_id AS gateway,
               toUnixTimestamp64Milli(u.ts) - {{from_ms:Int64}} AS at, max(u.interval_ms) AS spanned,
               max(u.bytes) AS transferred, max(u.muted_ms) AS muted, max(ifNotFinite(u.throttle_ms, 0)) AS longest
        FROM {table} AS u
        WHERE cluster = {{cluster:String}} AND {during} AND pair IN {{pairs:Array(UInt64)}}
          AND ({{all:UInt8}} OR u.throttle_ms > 0 OR u.muted_ms > 0)
        GROUP BY pair, broker_id, gateway, u.ip, at
    )
    GROUP BY pair, broker_id, at
    ORDER BY pair, broker_id, at
)
GROUP BY pair, broker_id
"""

_CLIENTS = """
SELECT DISTINCT user, client_id FROM {table} WHERE cluster = {{cluster:String}} AND {during} ORDER BY user, client_id
"""

# One row per quota in force at the beginning, however old, and all later changes.
_LIMITS = """
SELECT user, client_id, ip, quota_key, toString(toUnixTimestamp64Milli(max(valid_from))) AS since_ms,
       argMax(tuple(value), valid_from).1 AS value
FROM quota_limits
WHERE cluster = {cluster:String} AND valid_from <= fromUnixTimestamp64Milli({to_ms:Int64})
GROUP BY user, client_id, ip, quota_key, if(valid_from <= fromUnixTimestamp64Milli({from_ms:Int64}), NULL, valid_from)
"""

_FACTS = """
SELECT broker_id, toString(toUnixTimestamp64Milli(valid_from)) AS since_ms, release, quota_window_num AS samples,
       quota_window_size_ms AS window_ms, callback_class
FROM cluster_facts FINAL WHERE cluster = {cluster:String} ORDER BY broker_id, valid_from
"""


class SeenClient(NamedTuple):
    """A client at a broker that a change may affect. `throttled`: how many of its rows have a throttle time."""

    seen: Seen
    pair: str
    rows: int
    throttled: int
    bytes: float
    quiet: bool

    @property
    def client(self) -> ClientAtBroker:
        return self.seen.client


class SeenClients(NamedTuple):
    """The first of them, those first that are not quiet. The figures are of all."""

    clients: list[SeenClient]
    may_be_affected: int
    quiet: int
    bytes: float
    everyone: int  # also those that the change cannot affect


class RecordedBrokers(NamedTuple):
    """`callback_classes`: client.quota.callback.class of brokers, which may ignore the configured quotas."""

    windows: BrokerWindows
    callback_classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """What gateways recorded of the quota keys `keys` in (from_ms, to_ms]."""

    clickhouse: ClickHouse
    cluster: str
    keys: Sequence[str]
    from_ms: int
    to_ms: int
    now_ms: int

    def has_usage(self) -> bool:
        """Of the cluster; ends at the first row."""
        return bool(self._rows(_HAS_USAGE))

    def clusters(self) -> list[str]:
        return [row["cluster"] for row in self._rows(_CLUSTERS)]

    def clients(self) -> list[tuple[str, str]]:
        return [(row["user"], row["client_id"]) for row in self._rows(_CLIENTS)]

    def brokers(self) -> RecordedBrokers:
        return recorded_brokers(self._rows(_FACTS), self.from_ms)

    def history(self) -> list[QuotaLimit]:
        limits = []
        for row in self._rows(_LIMITS):
            names = (row["user"], row["client_id"], row["ip"], row["quota_key"])
            value = None if row["value"] is None else float(row["value"])
            limits.append(QuotaLimit(self.cluster, *names, int(row["since_ms"]), value))
        return limits

    def seen(
        self, alterations: Sequence[QuotaAlteration], history: Iterable[QuotaLimit], windows: BrokerWindows, most: int
    ) -> SeenClients:
        """Clients that the changes may affect, at most `most`."""
        hit, names = _match_changed_entity(alterations)
        all_recorded = all(is_recorded for _, is_recorded in windows.distinct)
        rows = self._rows(
            _SEEN,
            {"hit": hit},
            lowest=_lowest_limit(alterations, history) if all_recorded else 0.0,
            share=max(window.length_ms / 1000 / window.full_s for window, _ in windows.distinct),
            full_s=min(window.full_s for window, _ in windows.distinct),
            most=most,
            one_key=int(len(self.keys) == 1),
            **names,
        )
        if not rows:
            return SeenClients([], 0, 0, 0.0, 0)
        clients = []
        for row in rows:
            at_broker = ClientAtBroker(row["quota_key"], row["user"], row["client_id"], row["broker_id"])
            seen = Seen(at_broker, row["rate_max"], int(row["bytes_max"]), row["interval_ms"])
            counts = (int(row["samples"]), int(row["throttled"]))
            clients.append(SeenClient(seen, row["pair"], *counts, row["bytes"], bool(row["quiet"])))
        totals = (int(rows[0]["may_be_affected"]), int(rows[0]["all_quiet"]), rows[0]["all_bytes"])
        return SeenClients(clients, *totals, int(rows[0]["everyone"]))

    def usage(
        self, clients: Sequence[SeenClient], *, throttled_only: bool
    ) -> Iterator[tuple[ClientAtBroker, Recorded]]:
        """All rows of these clients, or those with a throttle time."""
        for part in divided(clients, lambda client: client.throttled if throttled_only else client.rows):
            measured = {(client.pair, client.client.broker_id): client.client for client in part}
            pairs = "[" + ",".join(sorted({client.pair for client in part})) + "]"
            for row in self._rows(_USAGE, pairs=pairs, all=int(not throttled_only)):
                at_broker = measured.get((row["pair"], row["broker_id"]))
                if at_broker is not None:
                    at = [int(at) + self.from_ms for at in row["at"]]
                    yield at_broker, recorded(at, row["spanned"], row["transferred"], row["muted"], row["longest"])

    def _rows(self, sql: str, words: Mapping[str, str] | None = None, **parameters: object) -> list[Row]:
        recent = self.from_ms > self.now_ms - _RECENT_MS and self.to_ms <= self.now_ms
        table = "quota_usage_recent" if recent else "quota_usage"
        all_parameters = {
            "cluster": self.cluster,
            "keys": list(self.keys),
            "from_ms": self.from_ms,
            "to_ms": self.to_ms,
            **parameters,
        }
        written = (
            sql
            if sql in (_LIMITS, _FACTS)
            else sql.format(table=table, during=_RECENT_DURING if recent else _DURING, **(words or {}))
        )
        return self.clickhouse.rows(written, all_parameters, max_bytes=_MAX_ANSWER_BYTES)


def recorded_brokers(rows: Iterable[Row], from_ms: int) -> RecordedBrokers:
    """`rows`: of _FACTS. The replay uses the windows that the brokers have now.

    If a broker had another window at any time since `from_ms`, its recorded rates do not apply.
    """
    of_broker: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        of_broker[row["broker_id"]].append(row)
    classes = {facts[-1]["callback_class"] for facts in of_broker.values()} - {""}
    windows = {}
    for broker_id, facts in of_broker.items():
        began = max((at for at, row in enumerate(facts) if int(row["since_ms"]) <= from_ms), default=0)
        recorded = [
            QuotaWindow(int(row["samples"]), int(row["window_ms"]), before_3_8(release_of_text(row["release"])))
            for row in facts[began:]
            if int(row["samples"]) >= 1 and int(row["window_ms"]) >= 1
        ]
        if recorded:  # otherwise the broker did not describe itself
            windows[broker_id] = BrokerWindow(recorded[-1], is_recorded=len(set(recorded)) == 1)
    return RecordedBrokers(BrokerWindows(windows), tuple(sorted(classes)))


def _match_changed_entity(alterations: Sequence[QuotaAlteration]) -> tuple[str, dict[str, str]]:
    """SQL for whether a client matches a changed entity, and the names in it. With several entities: everyone."""
    if len({alteration.entity for alteration in alterations}) != 1:
        return "1", {}
    entity = dict(alterations[0].entity)
    user, client_id = entity.get(USER), entity.get(CLIENT_ID)
    by_user = "user = {user:String}" if user is not None else f"NOT ({_HAS_OWN_RULE})"
    by_client_id = "client_id = {client_id:String}" if client_id is not None else "1"
    return f"({by_user} AND {by_client_id})", {"user": user or "", "client_id": client_id or ""}


def _lowest_limit(alterations: Sequence[QuotaAlteration], history: Iterable[QuotaLimit]) -> float:
    """No client gets a lower limit by the changes. After one change of one entity, clients that get another limit get
    the new value. After several changes, or a removal, any rule may give the limit."""
    values = [value for alteration in alterations for value in alteration.values.values()]
    limits = [value for value in values if value is not None]
    if len(alterations) > 1 or None in values:
        limits += [row.value for row in history if row.value is not None]
    return min(limits, default=UNLIMITED)


def divided(clients: Iterable[T], rows_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Parts with few enough clients (or groups of clients) and rows for one query."""
    part: list[T] = []
    rows = 0
    for client in clients:
        if part and (rows + rows_of(client) > _ROWS_PER_QUERY or len(part) >= _PAIRS_PER_QUERY):
            yield part
            part, rows = [], 0
        part.append(client)
        rows += rows_of(client)
    if part:
        yield part
