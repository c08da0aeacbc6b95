"""The examples of docs/levels.md are what the verdict says of such windows."""

from __future__ import annotations

import re

import pytest

from quota_metrics.verdict.evaluate import evaluate
from quota_metrics.verdict.memory import Memory
from quota_metrics.verdict.thresholds import LEVELS, Thresholds
from quota_metrics.verdict.window import Surroundings
from tests.docs.reference_pages import DOCS
from tests.kit.client_windows import LIMIT, MINUTE_MS, client_window

_CLASS = re.compile(r"the brokers use ([\w.]+)")
_IMPLIED = re.compile(r"implied limit ([\d.]+) kB/s")
_EXAMPLE = re.compile(r"^\| `(\w+)` \| ([\w. %]+) \| ([\w. %-]+) \| `(.+)` \|$", re.MULTILINE)


def examples() -> list[tuple[str, str, str, str]]:
    """Level, `mean and p95`, muted, reason."""
    return _EXAMPLE.findall((DOCS / "levels.md").read_text())


def test_each_level_has_an_example() -> None:
    assert {level for level, *_ in examples()} == set(LEVELS)


@pytest.mark.parametrize(("level", "used", "muted", "reason"), examples())
def test_an_example_of_a_level(level: str, used: str, muted: str, reason: str) -> None:
    is_limited, is_unexplained = "%" in used, "not explained" in reason
    mean, p95 = (float(part) / 100 for part in re.findall(r"[\d.]+", used)) if is_limited else (0.0, 0.0)
    muted_s, longest_ms = (float(part) for part in re.findall(r"[\d.]+", muted)) if muted != "-" else (0.0, 0.0)
    implied = _IMPLIED.search(reason)
    window = client_window(
        mean,
        p95,
        state="unknown" if level == "unknown" or is_unexplained else "limited" if is_limited else "none",
        limit=LIMIT if is_limited else None,
        rule_limit=LIMIT if is_limited or is_unexplained else None,
        decided_by="".join(_CLASS.findall(reason)),
        implied_limit=1000 * float(implied[1]) if implied else None,
        muted_ms=muted_s * 1000,
        throttle_ms=longest_ms,
    )
    (verdict,), _ = evaluate([window], Surroundings(), Memory(), Thresholds(), MINUTE_MS)
    assert (verdict.level, verdict.reason) == (level, reason)
