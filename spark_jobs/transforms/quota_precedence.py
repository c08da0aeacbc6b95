"""Resolves a client's quota and the bucket that shares it: Kafka's eight levels of precedence as one join.

A client has at most one candidate rule per level of PRECEDENCE (quota_metrics.config.precedence); the history of limits
gives the times at which each was in force, and the most specific one wins (ClientQuotaManager.DefaultQuotaCallback).
Clients are resolved once per change of a limit, not per window. Limits are few: they are broadcast.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.precedence import PRECEDENCE, Named
from quota_metrics.levels.thresholds import LARGEST_RATE

_FOR_EVER_MS = 2**63 - 1
_CLIENT = ("cluster", "quota_key", "user", "client_id")
_RULE = ("cluster", "quota_key", "rule_user", "rule_client_id")
_RULES_TYPE = (
    "array<struct<rank:int,valid_from_ms:bigint,valid_to_ms:bigint,limit:double,rule_user:string,"
    "rule_client_id:string,first_ms:bigint>>"
)

NO_LIMIT = -1.0


def intervals(history: DataFrame) -> DataFrame:
    """quota_limits as [valid_from_ms, valid_to_ms) per rule: a value holds until the next row; null means no rule.

    `first_ms` is when the rule was first observed, possibly as absent. Kafka accepts NaN as a value and never throttles
    by it; Long.MAX_VALUE commonly means "unlimited". Such a rule has no limit (-1), but still overrides less specific
    rules.
    """
    rule = Window.partitionBy("cluster", "quota_key", "user", "client_id")
    valid_to_ms = F.lead("valid_from_ms", 1, _FOR_EVER_MS).over(rule.orderBy("valid_from_ms"))
    is_limit = ~F.isnan("value") & (F.col("value") >= 0) & (F.col("value") <= LARGEST_RATE)
    return history.select(
        F.col("cluster"),
        F.col("quota_key"),
        F.col("user").alias("rule_user"),
        F.col("client_id").alias("rule_client_id"),
        F.col("valid_from_ms"),
        valid_to_ms.alias("valid_to_ms"),
        F.min("valid_from_ms").over(rule).alias("first_ms"),
        F.when(F.col("value").isNotNull(), F.when(is_limit, F.col("value")).otherwise(NO_LIMIT)).alias("limit"),
    ).where(F.col("limit").isNotNull())


def client_limits(clients: DataFrame, history: DataFrame, from_ms: int, to_ms: int) -> DataFrame:
    """The quota of each client (cluster, quota_key, user, client_id) in [from_ms, to_ms), as contiguous intervals:
    from_ms, to_ms, state, limit (-1: none), matched_entity as text, and bucket_user and bucket_client_id: clients with
    equal values share the limit.

    `state` is `limited`; `none`: no quota applies; `unknown`: no limit was observed yet, neither in the cluster nor for
    rules that match the client later.
    """
    rules = intervals(history)
    observed = history.groupBy("cluster").agg(F.min("valid_from_ms").alias("observed_ms"))
    matching = F.struct("rank", "valid_from_ms", "valid_to_ms", "limit", "rule_user", "rule_client_id", "first_ms")
    candidates = clients.select(*_CLIENT, F.explode(_candidates()).alias("rule")).select(
        *_CLIENT,
        F.col("rule.rank").alias("rank"),
        F.col("rule.user").alias("rule_user"),
        F.col("rule.client_id").alias("rule_client_id"),
    )
    matched = (
        candidates.join(F.broadcast(rules), on=list(_RULE), how="inner")
        .groupBy(*_CLIENT)
        .agg(F.collect_list(matching).alias("rules"))
    )
    known = clients.join(matched, on=list(_CLIENT), how="left").join(F.broadcast(observed), on="cluster", how="left")
    steps = known.withColumn("rules", F.coalesce("rules", F.array().cast(_RULES_TYPE))).withColumn(
        "steps", F.transform(_changes(from_ms, to_ms), _step)
    )
    return steps.select(*_CLIENT, F.inline(_merged(F.col("steps"), to_ms))).select(
        *_CLIENT, "from_ms", "to_ms", "limit.*"
    )


def _changes(from_ms: int, to_ms: int) -> Column:
    """The times in the range at which the client's rules change, from_ms first."""
    times = [
        F.array(F.lit(from_ms).cast("long"), F.coalesce("observed_ms", F.lit(from_ms).cast("long"))),
        *(F.col("rules")[name] for name in ("valid_from_ms", "valid_to_ms", "first_ms")),
    ]
    inside = F.filter(F.concat(*times), lambda at: (at >= from_ms) & (at < to_ms))
    return F.array_sort(F.array_distinct(inside))


def _step(at: Column) -> Column:
    """The quota of a client from a given time on.

    The most specific rule in force gives the metric's tags; the limit is that of the most specific rule with just the
    dimensions whose tags are not empty (DefaultQuotaCallback: quotaMetricTags, quotaLimit). So a default that matches
    an empty name has no limit itself, and overrides the rules with other dimensions.
    """
    in_force = F.filter("rules", lambda rule: (rule["valid_from_ms"] <= at) & (at < rule["valid_to_ms"]))
    first = F.array_min(in_force)
    tagged_user = _names(first["rank"], dimension=0) & (F.col("user") != "")
    tagged_client_id = _names(first["rank"], dimension=1) & (F.col("client_id") != "")
    winner = F.array_min(
        F.filter(
            in_force,
            lambda rule: (
                (_names(rule["rank"], dimension=0) == tagged_user)
                & (_names(rule["rank"], dimension=1) == tagged_client_id)
            ),
        )
    )
    later = F.exists("rules", lambda rule: rule["first_ms"] > at)
    unseen = F.col("observed_ms").isNull() | (at < F.col("observed_ms")) | later
    limited = winner.isNotNull() & (winner["limit"] >= 0)
    state = F.when(limited, "limited").when(first.isNull() & unseen, "unknown").otherwise("none")
    user = _bucket(F.col("user"), winner["rank"], dimension=0)
    client_id = _bucket(F.col("client_id"), winner["rank"], dimension=1)
    limit = F.struct(
        state.alias("state"),
        F.when(limited, winner["limit"]).otherwise(NO_LIMIT).alias("limit"),
        F.when(limited, _entity(winner["rule_user"], winner["rule_client_id"])).otherwise("").alias("matched_entity"),
        F.when(limited, user).otherwise(F.col("user")).alias("bucket_user"),
        F.when(limited, client_id).otherwise(F.col("client_id")).alias("bucket_client_id"),
    )
    return F.struct(at.alias("from_ms"), limit.alias("limit"))


def _merged(steps: Column, to_ms: int) -> Column:
    """Removes steps without a change and adds the end of each."""
    kept = F.filter(steps, lambda step, i: (i == 0) | (step["limit"] != F.get(steps, i - 1)["limit"]))
    return F.transform(
        kept,
        lambda step, i: F.struct(
            step["from_ms"].alias("from_ms"),
            F.coalesce(F.get(kept, i + 1)["from_ms"], F.lit(to_ms).cast("long")).alias("to_ms"),
            step["limit"].alias("limit"),
        ),
    )


def _candidates() -> Column:
    """The rules that match a client, each with its rank. A default matches an empty name too."""
    levels = []
    for rank, (user, client_id) in enumerate(PRECEDENCE):
        rule = F.struct(
            F.lit(rank).alias("rank"),
            _spelling(F.col("user"), user).alias("user"),
            _spelling(F.col("client_id"), client_id).alias("client_id"),
        )
        levels.append(F.when(_can_match(F.col("user"), user) & _can_match(F.col("client_id"), client_id), rule))
    return F.array_compact(F.array(*levels))


def _spelling(name: Column, match: Named) -> Column:
    """The value of this dimension in quota_limits for a rule of this level."""
    return {
        Named.EXACT: name,
        Named.DEFAULT: F.lit(DEFAULT_ENTITY),
        Named.ABSENT: F.lit(""),
    }[match]


def _can_match(name: Column, match: Named) -> Column:
    """False for an exact match of an empty name: in quota_limits '' means absent."""
    return (name != "") & (name != DEFAULT_ENTITY) if match is Named.EXACT else F.lit(True)


def _entity(user: Column, client_id: Column) -> Column:
    """`user=alice, client-id=<default>`: the rule as kafka-configs names entities."""
    named_user = F.when(user != "", F.concat(F.lit("user="), user))
    named_client_id = F.when(client_id != "", F.concat(F.lit("client-id="), client_id))
    return F.concat_ws(", ", named_user, named_client_id)


def _bucket(name: Column, rank: Column, *, dimension: int) -> Column:
    """The client's own name if the rule has this dimension (also as default), else '': the tags of the broker's sensor.
    A user's quota is one bucket for all its client-ids, a client-id's one for all users."""
    return F.when(_names(rank, dimension=dimension), name).otherwise("")


def _names(rank: Column, *, dimension: int) -> Column:
    """Whether rules of this rank include the dimension."""
    return rank.isin([rank for rank, level in enumerate(PRECEDENCE) if level[dimension] is not Named.ABSENT])
