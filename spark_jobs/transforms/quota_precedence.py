"""Which quota a client has, and with whom it shares it: Kafka's eight levels (exporters.model.PRECEDENCE) as one join.

A client has at most one candidate rule per level; the history of limits says which of them were in force, and the most
specific one wins (ClientQuotaManager.DefaultQuotaCallback). Limits are few: they are broadcast.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from exporters.model import DEFAULT_ENTITY, PRECEDENCE, Match

_FOR_EVER_MS = 2**63 - 1
_RULE = ("cluster", "quota_key", "rule_user", "rule_client_id")


def intervals(history: DataFrame) -> DataFrame:
    """quota_limits as [valid_from_ms, valid_to_ms) per rule: a value holds until the next row, a null one not at all.

    Kafka accepts NaN as a value, and then never throttles by it: no limit, but the rule still hides lesser ones.
    """
    of_rule = Window.partitionBy("cluster", "quota_key", "user", "client_id").orderBy("valid_from_ms")
    valid_to_ms = F.lead("valid_from_ms", 1, _FOR_EVER_MS).over(of_rule)
    return history.select(
        F.col("cluster"),
        F.col("quota_key"),
        F.col("user").alias("rule_user"),
        F.col("client_id").alias("rule_client_id"),
        F.col("valid_from_ms"),
        valid_to_ms.alias("valid_to_ms"),
        F.nanvl(F.col("value"), F.lit(float("inf"))).alias("limit"),
    ).where(F.col("limit").isNotNull())


def effective(clients: DataFrame, in_force: DataFrame) -> DataFrame:
    """Each row of `clients` (cluster, quota_key, user, client_id, window_start_ms, until_ms) that a quota applies to.

    `until_ms` is the window's end: what was in force just before it holds for the whole window. Adds limit,
    matched_entity as text, and bucket_user and bucket_client_id: who has the same ones shares the limit.
    """
    client = ("cluster", "quota_key", "user", "client_id", "window_start_ms")
    candidates = clients.select(*client, "until_ms", F.explode(_candidates()).alias("rule")).select(
        *client,
        "until_ms",
        F.col("rule.rank").alias("rank"),
        F.col("rule.user").alias("rule_user"),
        F.col("rule.client_id").alias("rule_client_id"),
    )
    held = (F.col("valid_from_ms") < F.col("until_ms")) & (F.col("until_ms") <= F.col("valid_to_ms"))
    rules = candidates.join(F.broadcast(in_force), on=list(_RULE), how="inner").where(held)
    winner = F.min(F.struct("rank", "limit", "rule_user", "rule_client_id")).alias("winner")
    return (
        rules.groupBy(*client)
        .agg(winner)
        .select(
            *client,
            F.col("winner.limit").alias("limit"),
            _entity(F.col("winner.rule_user"), F.col("winner.rule_client_id")).alias("matched_entity"),
            _bucket(F.col("user"), F.col("winner.rank"), dimension=0).alias("bucket_user"),
            _bucket(F.col("client_id"), F.col("winner.rank"), dimension=1).alias("bucket_client_id"),
        )
    )


def _candidates() -> Column:
    """The rules that could apply to a client, each with its rank. None with a default for a name that is empty: Kafka
    finds no limit for an empty user or client-id (DefaultQuotaCallback.quotaLimit looks at names that are there)."""
    levels = []
    for rank, (user, client_id) in enumerate(PRECEDENCE):
        rule = F.struct(
            F.lit(rank).alias("rank"),
            _spelling(F.col("user"), user).alias("user"),
            _spelling(F.col("client_id"), client_id).alias("client_id"),
        )
        levels.append(F.when(_nameable(F.col("user"), user) & _nameable(F.col("client_id"), client_id), rule))
    return F.array_compact(F.array(*levels))


def _spelling(name: Column, match: Match) -> Column:
    """How quota_limits spells this dimension of a rule of this level."""
    return {Match.EXACT: name, Match.DEFAULT: F.lit(DEFAULT_ENTITY), Match.ABSENT: F.lit("")}[match]


def _nameable(name: Column, match: Match) -> Column:
    if match is Match.ABSENT:
        return F.lit(True)
    return (name != "") & (name != DEFAULT_ENTITY) if match is Match.EXACT else name != ""


def _entity(user: Column, client_id: Column) -> Column:
    """`user=alice, client-id=<default>`: the rule as kafka-configs names entities."""
    named_user = F.when(user != "", F.concat(F.lit("user="), user))
    named_client_id = F.when(client_id != "", F.concat(F.lit("client-id="), client_id))
    return F.concat_ws(", ", named_user, named_client_id)


def _bucket(name: Column, rank: Column, *, dimension: int) -> Column:
    """The client's own name where the rule has this dimension (also as default), '' where it has not: the tags of the
    broker's sensor. A user's quota is one bucket for all its client-ids, a client-id's one for all users."""
    named = [rank for rank, level in enumerate(PRECEDENCE) if level[dimension] is not Match.ABSENT]
    return F.when(rank.isin(named), name).otherwise("")
