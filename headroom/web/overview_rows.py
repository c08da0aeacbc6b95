"""What the overview adds to each client's row: a short reason, a sparkline, and the question of another limit; the
sparklines of tiles."""

import hashlib
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from exporters.model import BYTE_KEYS, DEFAULT_ENTITY
from exporters.printable import shortened
from headroom.web.what_if import FormQuestion
from quota_metrics.config.entities import CLIENT_ID, USER, entity_of, entity_of_names, entity_text
from quota_metrics.verdict.thresholds import LARGEST_RATE

SHORT_CHARS: Final = 80
_RAISED = 1.25  # another limit to try: a quarter above what the limit is, and above what is used
_PLACE = re.compile(r" headroom (?:on broker \d+|at the controller)")
_SPARK_MINUTE, _SPARK_HEIGHT = 6, 24  # 15 minutes are 90 wide, an hour 360


def row_id(row: Mapping[str, Any], *columns: str) -> str:
    """The id in HTML of what these columns identify, the same at each refresh."""
    named = repr([row[column] for column in columns])
    return "c" + hashlib.blake2s(named.encode(errors="backslashreplace"), digest_size=8).hexdigest()


def short_reason(row: Mapping[str, Any]) -> str:
    """What the reason says beside the columns, which have the share, the rule and how long the client was muted.

    At most SHORT_CHARS characters, to the end of a clause where there is one; who takes most of the quota is first.
    """
    reason, entity = row["reason"], row["matched_entity"]
    _, is_named, beside = reason.partition(f" of {entity}, ")
    if is_named and entity and reason.startswith("at "):
        return _beginning(_culprit_first(_PLACE.sub(" headroom", beside, count=1)))
    _, is_muted, why = reason.partition(": ")
    if not is_muted or not reason.startswith("muted "):
        return _beginning(reason)
    rule = rf"{re.escape(row['quota_key'])} [\d.]+ \S+ of {re.escape(entity)}"
    return _beginning(_culprit_first(re.sub(rule, "its quota", why, count=1)))


def _culprit_first(reason: str) -> str:
    """`...; another client shares this quota, NAME takes 97 % of it` as `NAME takes 97 % of this quota; ...`."""
    rest, _, last = reason.rpartition("; ")
    _, is_named, takes = last.partition(" this quota, ")
    return f"{takes.removesuffix(' of it')} of this quota; {rest}" if is_named else reason


def _beginning(reason: str) -> str:
    ends = [at for at, char in enumerate(reason) if char in ",;:" and reason[at + 1 : at + 2] == " "]
    if len(reason) <= SHORT_CHARS:
        return reason
    fitting = [at for at in ends if at <= SHORT_CHARS]
    return reason[: fitting[-1]] if fitting else shortened(reason, SHORT_CHARS)


def question(row: Mapping[str, Any]) -> FormQuestion | None:
    """Another limit for the rule that applies to the client, or a first one for the client; None where what-if knows no
    such quota."""
    if row["quota_key"] not in BYTE_KEYS:
        return None
    names = itertools.product(("", row["user"], DEFAULT_ENTITY), ("", row["client_id"], DEFAULT_ENTITY))
    rules = (pair for pair in names if any(pair) and entity_text(entity_of_names(*pair, "")) == row["matched_entity"])
    user, client_id = next(rules, (row["user"], row["client_id"]))
    named = {USER: user, CLIENT_ID: client_id}
    entity = entity_of({kind: None if name == DEFAULT_ENTITY else name for kind, name in named.items() if name})
    used = _RAISED * max(row["limit"] or 0.0, row["group_p95"] or 0.0)
    return FormQuestion(row["cluster"], entity, row["quota_key"], _rounded_up(used), "1h") if entity else None


def question_of_rule(rule: Mapping[str, Any]) -> FormQuestion | None:
    """A quarter more for a rule; None where what-if knows no such quota, or no such entity."""
    entity = entity_of_names(rule["user"], rule["client_id"])
    if rule["quota_key"] not in BYTE_KEYS or not entity:
        return None
    return FormQuestion(rule["cluster"], entity, rule["quota_key"], _rounded_up(_RAISED * rule["value"]), "1h")


def _rounded_up(value: float) -> float:
    """To two digits; at least 1."""
    if not 1 < value < LARGEST_RATE:
        return 1.0 if value <= 1 else LARGEST_RATE
    unit: float = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


def sparkline(points: list[tuple[int, float]], limit: float | None) -> dict[str, str]:
    """SVG of 90 by 24 for a quarter of an hour, a step for each minute: `line`, the points of a polyline; `limit`, its
    height, empty for none.

    The upper edge is the limit or the highest rate.
    """
    most = max([limit or 0.0, *(rate for _, rate in points), 1.0])

    def height(rate: float) -> str:
        return f"{_SPARK_HEIGHT - rate / most * (_SPARK_HEIGHT - 2):.1f}"

    steps = [
        f"{minute * _SPARK_MINUTE},{height(rate)} {(minute + 1) * _SPARK_MINUTE},{height(rate)}"
        for minute, rate in points
    ]
    return {"line": " ".join(steps), "limit": height(limit) if limit else ""}
