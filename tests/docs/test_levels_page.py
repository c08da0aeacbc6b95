"""The examples of docs/levels.md are what the definition says of such windows."""

from __future__ import annotations

import re

import pytest

from quota_metrics.levels import definition
from quota_metrics.levels.definition import Thresholds
from tests.docs.reference_pages import DOCS
from tests.kit.clickhouse import RunningClickHouse

LIMIT = 200_000.0
NO_NUMBER = "CAST(NULL AS Nullable(Float64))"
_CLASS = re.compile(r"the brokers use ([\w.]+)")
_IMPLIED = re.compile(r"implied limit ([\d.]+) kB/s")
_EXAMPLE = re.compile(r"^\| `(\w+)` \| ([\w. %]+) \| ([\w. %-]+) \| `(.+)` \|$", re.MULTILINE)


def examples() -> list[tuple[str, str, str, str]]:
    """Level, `mean and p95`, muted, reason."""
    return _EXAMPLE.findall((DOCS / "levels.md").read_text())


def test_each_level_has_an_example() -> None:
    assert {level for level, *_ in examples()} == {"ok", "watch", "warn", "critical", "throttled", "unknown"}


@pytest.mark.clickhouse
@pytest.mark.parametrize(("level", "used", "muted", "reason"), examples())
def test_an_example_of_a_level(level: str, used: str, muted: str, reason: str, clickhouse: RunningClickHouse) -> None:
    mean, p95 = (float(part) / 100 for part in re.findall(r"[\d.]+", used)) if "%" in used else (0.0, 0.0)
    limited = "%" in used
    state = "unknown" if level == "unknown" or "not explained" in reason else "limited" if limited else "none"
    muted_s, longest_ms = (float(part) for part in re.findall(r"[\d.]+", muted)) if muted != "-" else (0.0, 0.0)
    window = {
        "state": f"'{state}'",
        "`limit`": f"toFloat64({LIMIT})" if limited else NO_NUMBER,
        "rule_limit": f"toFloat64({LIMIT})" if limited or "not explained" in reason else NO_NUMBER,
        "decided_by": f"'{''.join(_CLASS.findall(reason))}'",
        "implied_limit": f"toFloat64({1000 * float(implied[0])})"
        if (implied := _IMPLIED.findall(reason))
        else NO_NUMBER,
        "quota_key": "'producer_byte_rate'",
        "matched_entity": "'client-id=orders'",
        "user": "'alice'",
        "client_id": "'orders'",
        "broker_id": "1",
        "elapsed_s": "60",
        "muted_ms": f"{muted_s * 1000:.0f}",
        "throttle_ms": f"{longest_ms}",
        "group_usage": f"{mean * LIMIT}",
        "group_p95": f"{p95 * LIMIT}",
        "usage_max": f"{p95 * LIMIT}",
        "shared_with": "0",
        "greediest_user": "''",
        "greediest_client_id": "''",
        "greediest_usage": "0.0",
        "members_usage": "0.0",
    }
    thresholds = Thresholds()
    steps = [
        {**definition.NUMBERS, "rule": definition.RULE},
        {"value": definition.VALUE, "culprit_user": definition.CULPRIT_USER},
        {"culprit_client_id": definition.CULPRIT_CLIENT_ID, "culprit_share": definition.CULPRIT_SHARE},
        {"held": definition.reached(thresholds)},
        {"level": definition.level("held", thresholds)},
        {"instant_level": "level"},
    ]
    query = "SELECT " + ", ".join(f"{value} AS {name}" for name, value in window.items())
    for step in steps:
        query = f"SELECT *, {', '.join(f'{value} AS {name}' for name, value in step.items())} FROM ({query})"
    found = clickhouse.store.query(f"SELECT level, {definition.reason(thresholds)} FROM ({query})")
    assert [tuple(row) for row in found] == [(level, reason)]
