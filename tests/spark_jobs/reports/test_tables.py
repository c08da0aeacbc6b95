"""The reports that are tables of rows: shares, times, what stands below a row."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from spark_jobs.reports.tables import FORECAST, FORECAST_COLUMNS

MADE = datetime(2026, 11, 20, 10, 5, tzinfo=UTC)


def forecast(**changed: Any) -> dict[str, Any]:
    row = dict.fromkeys(FORECAST_COLUMNS.names) | {"cluster": "c", "quota_key": "producer_byte_rate", "user": "batch"}
    row |= {"client_id": "", "broker_id": 1, "made_at": MADE, "utilization": 0.8174, "confidence": 1.0, "reason": "why"}
    return {**row, "p10": [], "p50": [], "p90": [], **changed}


def test_shares_are_percentages_and_times_have_their_zone() -> None:
    (_, _, line) = [text.plain for text in FORECAST.to_table([forecast(hits_limit_at=MADE)], None)]
    assert re.split(r"\s{2,}", line) == [
        "c", "producer_byte_rate", "batch", "-", "1", "81.7 %", "2026-11-20 10:05 UTC", "100.0 %", "-", "why",
    ]  # fmt: skip
    page = FORECAST.to_html([forecast(hits_limit_at=MADE)])
    assert '<td class="time">2026-11-20 10:05 UTC</td><td class="number">100.0 %</td><td class="number">-</td>' in page
    assert re.findall(r'<div class="below">(.*)</div>', page) == ["why"]


def test_page_says_when_it_was_made() -> None:
    assert "<p>Made 2026-11-20 10:05 UTC.</p>" in FORECAST.to_html([forecast()])
    assert "<p>Made" not in FORECAST.to_html([])
