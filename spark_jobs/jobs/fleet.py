"""The clients of a fleet: their names, the rules in force, and the buckets that new quotas would give them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from exporters.clickhouse.client import ClickHouse
from exporters.model import ANONYMOUS, BYTE_KEYS, DEFAULT_ENTITY, QuotaKey
from quota_metrics.config.entities import CLIENT_ID, USER, Entity, Rules, entity_of_names
from quota_metrics.config.resolution import CLIENT_KEYS, Resolver
from quota_metrics.minutes.records import records, statement
from quota_metrics.minutes.resolved_limits import ClientKey
from quota_metrics.minutes.rows import ClientLimits, LimitInterval
from quota_metrics.suggestion.dimension import OF_ONE_RUN, Dimension, Fleet, dimension_of, placed
from spark_jobs.clickhouse import queries
from spark_jobs.clickhouse.slices import step_ms
from spark_jobs.clickhouse.source import arrow_schema, collected, read
from spark_jobs.jobs.usage_windows import CountedRange
from spark_jobs.options import By, SuggestOptions
from spark_jobs.time_range import DAY_MS, TimeRange

_CLIENTS = f"""
SELECT DISTINCT cluster, quota_key, u.user AS user, u.client_id AS client_id
FROM usage_1m AS u
WHERE {queries.OF_MINUTES} AND cluster = {{cluster:String}} AND quota_key = {{quota_key:String}}
"""  # noqa: S608 - made of our own words
_CLIENT = ("cluster", "quota_key", "user", "client_id")
_PLACE = ("rule_user", "rule_client_id", "bucket_user", "bucket_client_id")
_CLIENTS_SCHEMA = queries.schema(**dict.fromkeys(_CLIENT, T.StringType))
_PLACED = queries.schema(**dict.fromkeys((*_CLIENT, *_PLACE), T.StringType))


def keys_of(source: str) -> tuple[str, ...]:
    """The keys of which the source has usage: on the wire there are bytes, but no thread time."""
    return (*BYTE_KEYS, QuotaKey.REQUEST_PERCENTAGE.value) if source == "jmx" else BYTE_KEYS


class Day(NamedTuple):
    """A day (UTC), as far as it lies in the range, in which a key of a cluster has usage."""

    cluster: str
    quota_key: str
    from_ms: int
    to_ms: int


class InForce(NamedTuple):
    """The rules of a cluster at the end of the range, and those values (entity, key) that it had all the time."""

    rules: Rules
    settled: frozenset[tuple[Entity, str]]


class Fleets(NamedTuple):
    """`in_force` and `dimensions` (with the reason) by cluster; `placed`: a row for each client and key."""

    in_force: Mapping[str, InForce]
    dimensions: Mapping[str, tuple[Dimension, str]]
    placed: DataFrame


def fleets(spark: SparkSession, clickhouse: ClickHouse, counted: CountedRange, options: SuggestOptions) -> Fleets:
    """Reads the clients' names and the rules, and places each client. Raises StoreError."""
    in_force = rules_in_force(clickhouse, counted.when, options.cluster)
    slices = [{"source": options.source, **day._asdict()} for day in days(counted)]
    clients = read(spark, clickhouse, _CLIENTS, _CLIENTS_SCHEMA, slices).distinct().cache()
    named = names_of(clients)
    rules = {cluster: in_force.get(cluster, InForce({}, frozenset())).rules for cluster in named}
    if options.by is By.AUTO:
        keys = keys_of(options.source)
        dimensions = {cluster: dimension_of(rules[cluster], keys, fleet) for cluster, fleet in named.items()}
    else:
        dimensions = dict.fromkeys(named, (Dimension(options.by.value), "chosen by --by"))
    chosen = {cluster: dimension for cluster, (dimension, _) in dimensions.items()}

    def places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        resolvers = {cluster: Resolver(of_cluster) for cluster, of_cluster in rules.items()}
        for batch in batches:
            rows = batch.to_pylist()
            for row in rows:
                cluster = row["cluster"]
                names = (row["quota_key"], row["user"], row["client_id"])
                place = placed(resolvers[cluster], chosen[cluster], *names)
                rule = ("", "") if place.rule is None else stored_names(place.rule)
                row.update(zip(_PLACE, (*rule, *(place.bucket or (None, None))), strict=True))
            yield from pa.Table.from_pylist(rows, arrow_schema(_PLACED)).to_batches()

    return Fleets(in_force, dimensions, clients.mapInArrow(places, _PLACED).cache())


def names_of(clients: DataFrame) -> dict[str, Fleet]:
    """By cluster, of rows of cluster, user and client_id."""
    lasting = F.when(F.col("client_id").rlike(OF_ONE_RUN.pattern), "").otherwise(F.col("client_id"))
    of_user = clients.select("cluster", "user", lasting).distinct().groupBy("cluster", "user").count()
    is_known = ~F.col("user").isin("", ANONYMOUS)
    counts = of_user.groupBy("cluster").agg(
        F.count_if(is_known).alias("users"),
        F.sum("count").alias("clients"),
        F.coalesce(F.max(F.when(is_known, F.col("count"))), F.lit(0)).alias("most"),
    )
    return {row["cluster"]: Fleet(row["users"], row["clients"], row["most"]) for row in collected(counts).to_pylist()}


def days(counted: CountedRange) -> list[Day]:
    when = counted.when
    last_ms = step_ms(when) - 1  # a step of the counts may reach into the next day
    starts = {
        (count["cluster"], count["quota_key"], at_ms // DAY_MS * DAY_MS)
        for count in counted.counts
        for at_ms in (max(count["start_ms"], when.from_ms), min(count["start_ms"] + last_ms, when.to_ms - 1))
    }
    return [
        Day(cluster, key, max(start_ms, when.from_ms), min(start_ms + DAY_MS, when.to_ms))
        for cluster, key, start_ms in sorted(starts)
    ]


def rules_in_force(clickhouse: ClickHouse, when: TimeRange, cluster: str) -> dict[str, InForce]:
    """Of each cluster of which rules were recorded. Raises StoreError."""
    asked = {"to_ms": when.to_ms, "cluster": cluster, "quota_keys": CLIENT_KEYS}
    history = clickhouse.rows(statement("limits"), asked)
    newest: dict[tuple[str, Entity, str], tuple[int, float | None]] = {}
    for row in sorted(history, key=lambda row: int(row["valid_from_ms"])):
        entity = entity_of_names(row["user"], row["client_id"])
        value = None if row["value"] is None else float(row["value"])
        newest[row["cluster"], entity, row["quota_key"]] = (int(row["valid_from_ms"]), value)
    rules: dict[str, dict[Entity, dict[str, float]]] = {cluster: defaultdict(dict) for cluster, _, _ in newest}
    settled: dict[str, set[tuple[Entity, str]]] = defaultdict(set)
    for (of_cluster, entity, key), (since_ms, value) in newest.items():
        if value is not None:
            rules[of_cluster][entity][key] = value
            if since_ms <= when.from_ms:
                settled[of_cluster].add((entity, key))
    return {name: InForce(dict(of_cluster), frozenset(settled[name])) for name, of_cluster in rules.items()}


def assigned(clients: DataFrame, when: TimeRange) -> ClientLimits:
    """The bucket that a new quota would give each client, for the whole range: as a limit of 1, so that shares of it
    are rates."""
    rows = collected(clients.where(F.col("bucket_user").isNotNull()).select(*_CLIENT, *_PLACE[2:]))
    limits: dict[ClientKey, list[LimitInterval]] = {}
    for cluster, quota_key, user, client_id, *bucket in records(rows):
        interval = LimitInterval(when.from_ms, when.to_ms, "limited", 1.0, "", *bucket)
        limits[cluster, quota_key, user, client_id] = [interval]
    return ClientLimits(limits, assigned=True)


def clients_of_rules(clients: DataFrame) -> dict[tuple[str, str], Counter[Entity]]:
    """By cluster and key, how many clients have each rule."""
    counts = collected(clients.groupBy("cluster", "quota_key", "rule_user", "rule_client_id").count()).to_pylist()
    clients_of: dict[tuple[str, str], Counter[Entity]] = defaultdict(Counter)
    for row in counts:
        if row["rule_user"] or row["rule_client_id"]:
            rule = entity_of_names(row["rule_user"], row["rule_client_id"])
            clients_of[row["cluster"], row["quota_key"]][rule] += row["count"]
    return clients_of


def stored_names(entity: Entity) -> tuple[str, str]:
    """User and client-id of an entity as in quota_limits."""
    names = {kind: DEFAULT_ENTITY if name is None else name for kind, name in entity}
    return names.get(USER, ""), names.get(CLIENT_ID, "")
