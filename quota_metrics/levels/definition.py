"""The thresholds of levels; utilisation, worst broker, level and reason as SQL.

ClickHouse and Spark both know what Spark needs to compare windows: NUMBERS, VALUE, the culprit, is_onset and the order
of brokers. It uses only what both have and compute alike: CASE, CAST, coalesce, greatest, least and arithmetic. Levels
and words are ClickHouse's. Numbers in words are rounded half up.

An expression reads the columns of a window by name: those of ``windows_query`` (`limit` NULL without one or when what
the brokers use is not known, `rule_limit`, `decided_by`, `implied_limit`, `state` 'unknown', 'none' or 'limited',
`muted_ms`, `elapsed_s`, `group_usage`, ...) and those of the expressions before it.
The definitions in words: docs/levels.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from exporters.model import CONTROLLER, QuotaKey

LARGEST_RATE: Final = 1e15  # per second; a rate above it is invalid, a limit above it (Long.MAX_VALUE) never throttles
UNEXPLAINED: Final = 0.5  # a rule does not explain throttle times that imply a limit below this share of it
MUTED_LOOKBACK_MS: Final = 600_000  # how long before a window a throttle time may mute the client in it

# Levels do not flicker: one is entered at once and left when the value is below its threshold by more than MARGIN in
# two windows in a row. The memory is bounded, so that a level does not depend on where the range of a run starts.
MARGIN: Final = 0.05
MEMORY_WINDOWS: Final = 10


class Thresholds(NamedTuple):
    """Shares of the limit at which the levels of these names begin, ascending; and `muted_share` of a window at which
    `throttled` begins."""

    watch: float = 0.60
    warn: float = 0.80
    critical: float = 0.95
    muted_share: float = 0.01

    @property
    def steps(self) -> tuple[float, ...]:
        """The thresholds of utilisation, ascending."""
        return self[:-1]

    def errors(self) -> list[str]:
        """What is wrong with them, in words; empty when 0 < watch <= warn <= critical and 0 < muted_share <= 1."""
        found = []
        if not self.steps[0] > 0 or list(self.steps) != sorted(self.steps):
            given = ", ".join(f"{name} {step}" for name, step in zip(STEPS, self.steps, strict=True))
            found.append(f"thresholds must be above 0 and must not fall: {given}")
        if not 0 < self.muted_share <= 1:
            found.append(f"muted_share must be above 0 and at most 1, not {self.muted_share}")
        return found


def thresholds_in_force(stored: Sequence[Mapping[str, float]]) -> Thresholds:
    """From the rows of `minute.THRESHOLDS`; the defaults until `headroom serve` has stored its settings."""
    return Thresholds(**stored[0]) if stored else Thresholds()


STEPS: Final = Thresholds._fields[:-1]  # levels that begin at a share of the limit, ascending
LEVELS: Final = ("unknown", "ok", *STEPS, "throttled")  # best first; numbers in ClickHouse and on /metrics: from -1 on
_NUMBERED = ", ".join(f"'{name}' = {number}" for number, name in enumerate(LEVELS, start=-1))


def level_of_number(number: int) -> str:
    """The level whose value in ClickHouse's Enum8 and on /metrics is `number`, from -1 on. Raises IndexError."""
    return LEVELS[range(len(LEVELS))[number + 1]]


_STEP_COLUMNS = "\n".join(
    f"    {f'`{name}`':<13} Float64  COMMENT 'share of the limit at which {name} begins'," for name in STEPS
)
# What the templates of deploy/clickhouse/schema name.
SCHEMA_VALUES: Final[Mapping[str, object]] = {
    "largest_rate": f"{LARGEST_RATE:.0f}",
    "level_type": f"Enum8({_NUMBERED})",
    "level_steps": _STEP_COLUMNS,
}


MEASURED_KEYS: Final = (QuotaKey.PRODUCER_BYTE_RATE.value, QuotaKey.CONSUMER_BYTE_RATE.value)

_MOST_SHARE = 0.5  # share of a shared quota from which a client is named
_BURST = 0.1  # by how much p95 exceeds the mean when usage is said to come in bursts
# What else may throttle a client: a response carries only the longest of its throttle times.
_ANOTHER = "short bursts, or another quota such as request_percentage"


def case(*branches: tuple[str, str], otherwise: str) -> str:
    """CASE with (condition, value) in order."""
    whens = " ".join(f"WHEN {condition} THEN {value}" for condition, value in branches)
    return f"(CASE {whens} ELSE {otherwise} END)"


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("'", "''") + "'"


def concat(*parts: str) -> str:
    """Parts one after the other; NULL when one is NULL."""
    return f"concat({', '.join(parts)})"


def _half_up(number: str) -> str:
    """A number of at least 0, rounded half up."""
    return f"floor(least(coalesce({number}, 0.0), {LARGEST_RATE!r}) + 0.5)"


def rounded(number: str) -> str:
    """`12`: rounded half up, as text."""
    return f"toString(toInt64({_half_up(number)}))"


def tenths(number: str) -> str:
    """`12.3`: rounded half up to one digit, as text."""
    return f"toDecimalString({_half_up(f'({number}) * 10')} / 10, 1)"


def percent(share: str) -> str:
    """`84.9 %`."""
    return concat(tenths(f"({share}) * 100"), "' %'")


_SIZES = [1000.0**power for power in range(1, 6)]
_SIZE_UNITS = [f" {prefix}B/s" for prefix in "kMGTP"]
_FROM = [0.99995 * size for size in _SIZES]  # what is below it rounds to less than 1000.0 of the unit before
_UNITS: Final = {
    QuotaKey.REQUEST_PERCENTAGE.value: " %",
    QuotaKey.CONTROLLER_MUTATION_RATE.value: " mutations/s",
    QuotaKey.CONNECTION_CREATION_RATE.value: " connections/s",
}


def amount(rate: str) -> str:
    """A rate with the unit of its quota key, as quota_metrics.amounts.rate_text writes it."""
    power = f"arrayCount(size -> {rate} >= size, {_FROM})"
    in_bytes = case(
        (f"{rate} < {_FROM[0]!r}", concat(rounded(rate), "' B/s'")),
        otherwise=concat(tenths(f"{rate} / {_SIZES}[{power}]"), f"{_SIZE_UNITS}[{power}]"),
    )
    keys, units = list(_UNITS), list(_UNITS.values())
    in_units = concat(tenths(rate), f"transform(quota_key, {keys}, {units}, '')")
    return case((f"quota_key IN {tuple(keys)}", in_units), otherwise=in_bytes)


def duration(ms: str) -> str:
    """`905 ms`, `1.5 s`."""
    return case((f"{ms} >= 999.5", concat(tenths(f"{ms} / 1000"), "' s'")), otherwise=concat(rounded(ms), "' ms'"))


_KEYS = ", ".join(text(key) for key in MEASURED_KEYS)

# Which windows are of interest: byte rates always; other quotas only if a limit exists or the client was muted.
WORTH_A_ROW: Final = f"(quota_key IN ({_KEYS}) OR `limit` IS NOT NULL OR muted_ms > 0)"

# Of some quotas only the throttling can be seen: a rate of 0 means that the rate is not measured.
_UNMEASURED = f"quota_key NOT IN ({_KEYS}) AND group_usage = 0 AND (throttle_ms > 0 OR muted_ms > 0)"


def _share(rate: str) -> str:
    """Share of the limit; NULL without one and where usage is not measured. Any usage exceeds a limit of 0."""
    return case(
        (f"`limit` IS NULL OR ({_UNMEASURED})", "NULL"),
        ("`limit` > 0", f"{rate} / `limit`"),
        (f"{rate} > 0", "CAST('Infinity' AS DOUBLE)"),
        otherwise="NULL",
    )


# What a window says beside its level, each a column of headroom_minutes and of quota_utilization with this name.
NUMBERS: Final[Mapping[str, str]] = {"utilization": _share("group_usage"), "utilization_p95": _share("group_p95")}

# What levels go by: the greater of `utilization` and `utilization_p95`, NULL without a limit.
VALUE: Final = case(
    ("utilization IS NULL", "utilization_p95"),
    ("utilization_p95 IS NULL OR utilization >= utilization_p95", "utilization"),
    otherwise="utilization_p95",
)


def is_throttled(thresholds: Thresholds) -> str:
    """Whether the client was muted for so much of the window that its level is `throttled`."""
    return f"(muted_ms > 0 AND muted_ms >= {thresholds.muted_share!r} * 1000 * elapsed_s)"


def worst_broker_first(thresholds: Thresholds) -> str:
    """ORDER BY of a client's brokers: where it is throttled, then nearest to the limit, then muted longest."""
    throttled = case((is_throttled(thresholds), "1"), otherwise="0")
    return f"{throttled} DESC, coalesce(value, -1) DESC, muted_ms DESC, broker_id ASC"


def is_onset(thresholds: Thresholds) -> str:
    """1 in the first window at `warn` or muted, after one that is clearly below it; else 0.

    Between them may be a window that is just below: a change in its last seconds moves an average only in part.
    """
    clearly, just = thresholds.warn - MARGIN, thresholds.warn
    is_near = f"(value >= {just!r} OR muted_ms > 0)"
    was_calm = (
        f"before_muted_ms = 0 AND (before_value < {clearly!r}"
        f" OR before_value < {just!r} AND earlier_value < {clearly!r} AND earlier_muted_ms = 0)"
    )
    return case((f"{is_near} AND {was_calm}", "1"), otherwise="0")


def reached(thresholds: Thresholds) -> str:
    """How many thresholds of utilisation `value` reaches."""
    steps = [(f"value >= {step!r}", str(number)) for number, step in enumerate(thresholds.steps, start=1)]
    return case(*reversed(steps), otherwise="0")


def level(held: str, thresholds: Thresholds) -> str:
    """The level's name. `held`: expression of how many thresholds hold."""
    return case(
        (is_throttled(thresholds), "'throttled'"),
        ("muted_ms > 0", "'critical'"),
        ("state = 'unknown'", "'unknown'"),
        ("value IS NULL", "'ok'"),
        *reversed([(f"{held} = {number}", text(name)) for number, name in enumerate(STEPS, start=1)]),
        otherwise="'ok'",
    )


# The culprit of a shared quota: who takes more of it than any other client; empty when the quota is not shared or when
# several take the same.
_IS_SHARED = "shared_with > 0 AND greediest_usage > 0"
CULPRIT_USER: Final = case((_IS_SHARED, "greediest_user"), otherwise="''")
CULPRIT_CLIENT_ID: Final = case((_IS_SHARED, "greediest_client_id"), otherwise="''")
CULPRIT_SHARE: Final = case(
    (f"{_IS_SHARED} AND members_usage > 0", "greediest_usage / members_usage"), otherwise="NULL"
)

# What the brokers use is not the rule: a class of theirs, or what throttle times imply (WindowsQuery).
_IS_UNEXPLAINED = "(state = 'unknown' AND (decided_by <> '' OR rule_limit IS NOT NULL))"
_AT_BROKER = case(
    (f"broker_id = {CONTROLLER}", "' at the controller'"),
    otherwise=concat("' on broker '", "CAST(broker_id AS String)"),
)
_LIMIT = "coalesce(`limit`, 0)"
_OF_ENTITY = case(("matched_entity = ''", "''"), otherwise=concat("' of '", "matched_entity"))
# The rule in words, `producer_byte_rate 200.0 kB/s of client-id=app`: a column `rule`, because `reason` reads it often.
RULE: Final = concat("quota_key", "' '", amount("coalesce(rule_limit, 0)"), _OF_ENTITY)
_UNEXPLAINED = concat(
    case(
        ("rule_limit IS NULL", concat("'the brokers use '", "decided_by")),
        ("decided_by <> ''", concat("'not explained by '", "rule", "'; the brokers use '", "decided_by")),
        otherwise=concat("'not explained by '", "rule"),
    ),
    case(("implied_limit IS NOT NULL", concat("', implied limit '", amount("implied_limit"))), otherwise="''"),
)
_AT_SHARE = concat("'at '", percent("utilization"), "' of '", "rule")
_HEADROOM = amount(case((f"{_LIMIT} > group_usage", f"{_LIMIT} - group_usage"), otherwise="0"))


def _why_throttled(thresholds: Thresholds) -> str:
    wants_more = f"utilization >= {thresholds.watch!r} OR usage_max > {_LIMIT}"
    return case(
        (_IS_UNEXPLAINED, _UNEXPLAINED),
        ("state = 'unknown'", "'no quota was observed yet'"),
        ("`limit` IS NULL", concat("'no '", "quota_key", text(f" quota applies: {_ANOTHER}"))),
        ("utilization IS NULL", concat("'by '", "rule")),
        (wants_more, concat("'wants more than '", "rule")),
        otherwise=concat(_AT_SHARE, text(f": {_ANOTHER}")),
    )


def _throttled(thresholds: Thresholds) -> str:
    muted = concat("'muted '", tenths("muted_ms / 1000"), "' s of '", "CAST(elapsed_s AS String)", "' s'", _AT_BROKER)
    times = case(
        ("throttle_ms > 0", concat("', throttle times up to '", duration("throttle_ms"))),
        otherwise="' by an earlier throttle time'",
    )
    return concat(muted, times, "': '", _why_throttled(thresholds))


_NOT_THROTTLED = case(
    (
        "decided_by <> ''",
        concat(
            "'the brokers use '",
            "decided_by",
            case(("rule_limit IS NULL", "''"), otherwise=concat("' instead of '", "rule")),
        ),
    ),
    ("state = 'unknown'", "'no quota was observed yet'"),
    ("`limit` IS NULL", "'no quota applies'"),
    ("utilization IS NULL AND `limit` = 0", concat("'no usage, and '", "rule", "' allows none'")),
    ("utilization IS NULL", concat("'throttled by '", "rule", _AT_BROKER)),
    ("`limit` = 0", concat("'above '", "rule", _AT_BROKER)),
    otherwise=concat(_AT_SHARE, "', '", _HEADROOM, "' headroom'", _AT_BROKER),
)
_BURSTS = case(
    (
        f"`limit` > 0 AND utilization_p95 >= utilization + {_BURST!r}",
        concat("'; bursts to '", percent("utilization_p95")),
    ),
    otherwise="''",
)
_HELD = case(
    (
        f"level <> instant_level AND level IN ({', '.join(map(text, STEPS))})",
        concat("'; '", "level", "' until it stays lower for two windows'"),
    ),
    otherwise="''",
)
_OTHERS = case(
    ("shared_with = 1", "'; another client shares this quota'"),
    otherwise=concat("'; '", "CAST(shared_with AS String)", "' other clients share this quota'"),
)
_TAKES = case(
    (
        f"culprit_share >= {_MOST_SHARE!r}",
        concat(
            "', '",
            case(
                ("culprit_user = user AND culprit_client_id = client_id", "'this client'"),
                otherwise="culprit_client_id",
            ),
            "' takes '",
            rounded("culprit_share * 100"),
            "' % of it'",
        ),
    ),
    otherwise="''",
)
_SHARED = case(("shared_with > 0 AND state = 'limited'", concat(_OTHERS, _TAKES)), otherwise="''")


def reason(thresholds: Thresholds) -> str:
    """The level in words. Reads `rule`, `level`, `instant_level` and the culprit besides."""
    verdict = case(("muted_ms > 0", _throttled(thresholds)), otherwise=_NOT_THROTTLED)
    return concat(verdict, _BURSTS, _HELD, _SHARED)
