"""What changed when a client came near its limit: `cause`, as SQL expressions. ClickHouse and Spark both know those of
COMPARED and ONSET_KIND; the words are ClickHouse's.

At the onset of a level (definition.is_onset), the window is compared with the one before it at the same broker. The
first of these changes is named that explains at least half of the rise: the limit fell, the client began to use the
quota, its load moved to this broker, a neighbour in a shared quota rose. The text stays for TOLD_WINDOWS. When it is
none of these, the windows after the onset look for new instances of the client (`instances_query`): with a new version
or in a new network, more of them, or restarted ones. Not the onset itself, because what instances send is known when
they report it.

They read the columns of a window (`definition`), those of BASE with the prefix `base_` (`has_base` 0: no usage there in
the window before), and of the client on its worst broker `before_value` and `before_muted_ms` of the window before, 0
without, `earlier_value` and `earlier_muted_ms` of the one before that, `seen_before`: windows with usage among the
TOLD_WINDOWS before, `observed_before` 1 when the cluster had usage in each of these, and `earlier_cause`: that of the
last onset in these, '' without. `total_usage` and `total_before` are the client's rates at all brokers in the window
and the one before, 0 without. CAUSE also reads the names of CHANGE, of the last onset, and `usage_before_onset`: the
client's rate in the window before that. In words: docs/levels.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quota_metrics.levels.definition import MEMORY_WINDOWS, amount, case, concat, rounded, text
from quota_metrics.levels.impact import NEAR_LEVELS, of_direction

# An onset that far back still needs its own windows before within the memory that jobs read.
TOLD_WINDOWS: Final = MEMORY_WINDOWS // 2
BASE: Final = (
    "limit", "limit_known", "usage", "group_usage", "bucket_user", "bucket_client_id", "culprit_user",
    "culprit_client_id", "culprit_share",
)  # fmt: skip

_MOST = 0.5  # share of the rise that is explained by what is named
_RATES = (f"base_{name}" for name in ("usage", "group_usage"))
_OWN_BEFORE, _GROUP_BEFORE = (f"coalesce({name}, 0.0)" for name in _RATES)
_HAS_BASE = "has_base = 1"
_SAME_BUCKET = "base_bucket_user = bucket_user AND base_bucket_client_id = bucket_client_id"
_NOW = "coalesce(`limit`, 0.0)"
_BEFORE = "coalesce(base_limit, 0.0)"


def _two_digits(number: str) -> str:
    return case((f"{number} < 10", concat("'0'", f"CAST({number} AS String)")), otherwise=f"CAST({number} AS String)")


def _at(start_ms: str) -> str:
    """`10:04 UTC`: when the window begins."""
    hours, minutes = f"(({start_ms} DIV 3600000) % 24)", f"(({start_ms} DIV 60000) % 60)"
    return concat(_two_digits(hours), "':'", _two_digits(minutes), "' UTC'")


# The limit: what was used before counts against it, of the same quota by all who share it, of another one by the client
# alone. Utilisation would have risen from rate / before to rate / now: compared without a division.
_RATE = case((_SAME_BUCKET, _GROUP_BEFORE), otherwise=_OWN_BEFORE)
_EXPLAINED_BY_LIMIT = case(
    ("base_limit IS NULL", f"rate_before >= {_MOST!r} * group_usage"),
    otherwise=f"rate_before * ({_BEFORE} - {_NOW}) >= {_MOST!r} * (group_usage * {_BEFORE} - rate_before * {_NOW})",
)
_LIMIT_FELL = (
    f"({_HAS_BASE} AND base_limit_known = 1 AND `limit` IS NOT NULL AND (base_limit IS NULL OR `limit` < base_limit)"
    f" AND rate_before > 0 AND {_EXPLAINED_BY_LIMIT})"
)

# The client itself. Without usage of the cluster in all windows before, nobody knows whether it was there.
_BEGAN = f"(seen_before = 0 AND observed_before = 1 AND usage > 0 AND usage >= {_MOST!r} * group_usage)"

# The broker: what the client sends more there, it sends less elsewhere.
_ROSE_HERE = f"(usage - {_OWN_BEFORE})"
_MOVED = (
    f"({_ROSE_HERE} > 0 AND total_before > {_OWN_BEFORE}"
    f" AND {_ROSE_HERE} >= {_MOST!r} * (group_usage - {_GROUP_BEFORE})"
    f" AND {_ROSE_HERE} - greatest(total_usage - total_before, 0.0) >= {_MOST!r} * {_ROSE_HERE})"
)

# A neighbour: who takes most of a shared quota now. Of the window before only its greediest client is known, so another
# one had at most what that one had, and at most what is left without it and this client.
_IS_NEIGHBOUR = "culprit_share IS NOT NULL AND NOT (culprit_user = user AND culprit_client_id = client_id)"
_TAKES = "(coalesce(culprit_share, 0.0) * group_usage)"
_GREEDIEST = f"(coalesce(base_culprit_share, 0.0) * {_GROUP_BEFORE})"
_WAS_GREEDIEST = "(base_culprit_user = culprit_user AND base_culprit_client_id = culprit_client_id)"
_NEIGHBOUR_WAS_GREEDIEST = f"(base_culprit_share IS NOT NULL AND {_WAS_GREEDIEST})"
_TOOK_AT_MOST = case(
    (_NEIGHBOUR_WAS_GREEDIEST, _GREEDIEST),
    (
        "base_culprit_share IS NULL OR (base_culprit_user = user AND base_culprit_client_id = client_id)",
        f"greatest({_GROUP_BEFORE} - {_OWN_BEFORE}, 0.0)",
    ),
    otherwise=f"greatest(least({_GREEDIEST}, {_GROUP_BEFORE} - {_GREEDIEST} - {_OWN_BEFORE}), 0.0)",
)
_NEIGHBOUR_ROSE = (
    f"({_HAS_BASE} AND {_SAME_BUCKET} AND {_IS_NEIGHBOUR} AND group_usage > {_GROUP_BEFORE}"
    f" AND neighbour_usage - neighbour_before >= {_MOST!r} * (group_usage - {_GROUP_BEFORE}))"
)


# Columns that ONSET_KIND and the words read, because each is named several times.
COMPARED: Final[Mapping[str, str]] = {
    "neighbour_usage": _TAKES,
    "neighbour_before": _TOOK_AT_MOST,
    "rate_before": _RATE,
}
# What explains the rise of a window that is an onset; '' for nothing, and for windows that are none. `known neighbour`:
# how much it took before is known, not only how much at most.
ONSET_KIND: Final = case(
    ("is_onset = 0", "''"),
    (_LIMIT_FELL, "'limit'"),
    (_BEGAN, "'began'"),
    (_MOVED, "'moved'"),
    (f"{_NEIGHBOUR_ROSE} AND {_NEIGHBOUR_WAS_GREEDIEST}", "'known neighbour'"),
    (_NEIGHBOUR_ROSE, "'neighbour'"),
    otherwise="''",
)
# What the words read of an onset. `start_ms`: when its window begins.
ONSET: Final = (
    "onset_kind", "start_ms", "broker_id", "limit", "base_limit", "usage", "base_usage", "total_usage", "total_before",
    "culprit_client_id", "neighbour_usage", "neighbour_before",
)  # fmt: skip


OF_ONSET: Final = "onset_"  # prefix of the columns ONSET of the last onset, beside those of the window


def _in_words(prefix: str) -> str:
    of = {name: f"`{prefix}{name}`" for name in ONSET}
    now, before = (f"coalesce({of[name]}, 0.0)" for name in ("limit", "base_limit"))
    kind, time = of["onset_kind"], _at(of["start_ms"])
    fell = case(
        (f"{of['base_limit']} IS NULL", concat("'limit of '", amount(now), "' since '", time, "', none before'")),
        otherwise=concat("'limit lowered from '", amount(before), "' to '", amount(now), "' at '", time),
    )
    began = concat(
        *("'client began at '", time, "' with '", amount(of["usage"])),
        f"', no usage in the {TOLD_WINDOWS} windows before'",
    )
    moved = concat(
        *("'load moved to broker '", f"CAST({of['broker_id']} AS String)", "' at '", time, "': '", amount(of["usage"])),
        *("' of '", amount(of["total_usage"]), "' are there, '", amount(f"coalesce({of['base_usage']}, 0.0)")),
        *("' of '", amount(of["total_before"]), "' before'"),
    )
    rose = concat(
        *("'neighbour '", of["culprit_client_id"], "' takes '", amount(of["neighbour_usage"]), "' since '", time),
        *("', '", case((f"{kind} = 'neighbour'", "'at most '"), otherwise="''")),
        *(amount(of["neighbour_before"]), "' before'"),
    )
    return case(
        (f"{kind} = 'limit'", fell),
        (f"{kind} = 'began'", began),
        (f"{kind} = 'moved'", moved),
        (f"{kind} IN ('known neighbour', 'neighbour')", rose),
        otherwise="''",
    )


# ONSET_KIND in words: of the window, and of the onset of which it has the columns. They read `quota_key` besides.
ONSET_CAUSE: Final = _in_words("")
LAST_ONSET_CAUSE: Final = _in_words(OF_ONSET)

# Instances: with what new ones report their part of the rise is known; else when all are new, or by their number alone.
CHANGE: Final[Mapping[str, str]] = {  # column: that of instances_query.CHANGES it is an element of
    "change": "changes",
    "change_kept": "kept",
    "change_growth": "growth",
    "change_sent": "sent_shares",
    "change_received": "received_shares",
}
_RISE = "(usage - usage_before_onset)"
_REPORTED = of_direction("change_sent", "change_received", "NULL")
_NEW_EXPLAIN = case(
    (
        f"{_REPORTED} IS NOT NULL",
        f"{_REPORTED} * usage - (1 - change_kept) * usage_before_onset >= {_MOST!r} * {_RISE}",
    ),
    otherwise=f"(change_kept = 0 OR change_growth * usage_before_onset >= {_MOST!r} * {_RISE})",
)
_CHANGED = case(
    (f"coalesce(change, '') = '' OR {_RISE} <= 0 OR NOT ({_NEW_EXPLAIN})", "''"),
    (
        f"{_REPORTED} IS NOT NULL",
        concat("change", "'; these report '", rounded(f"{_REPORTED} * 100"), "' % of its bytes'"),
    ),
    otherwise="change",
)

# Reads `level`, `is_onset` and `onset_cause` besides.
CAUSE: Final = case(
    (f"level NOT IN ({', '.join(map(text, NEAR_LEVELS))})", "''"),
    ("is_onset = 1", "onset_cause"),
    ("earlier_cause <> ''", "earlier_cause"),
    otherwise=_CHANGED,
)
