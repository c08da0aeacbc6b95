"""The reports that are tables of rows: shares, times, what stands below a row."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from spark_jobs.reports.tables import CAPACITY, CAPACITY_COLUMNS, FORECAST, FORECAST_COLUMNS

MADE = datetime(2026, 11, 20, 10, 5, tzinfo=UTC)
COMMAND = "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type users --entity-name batch"


def forecast(**given: Any) -> dict[str, Any]:
    row = dict.fromkeys(FORECAST_COLUMNS.names) | {"cluster": "c", "quota_key": "producer_byte_rate", "user": "batch"}
    row |= {"client_id": "", "broker_id": 1, "made_at": MADE, "utilization": 0.8174, "confidence": 1.0, "reason": "why"}
    return {**row, "p10": [], "p50": [], "p90": [], **given}


def capacity(**given: Any) -> dict[str, Any]:
    row = dict.fromkeys(CAPACITY_COLUMNS.names) | {"cluster": "c", "quota_key": "producer_byte_rate", "user": "batch"}
    row |= {"client_id": "export", "broker_id": 1, "limit": 5e5, "utilization_mean": 0.9884, "verdict": "fits"}
    row |= {"made_at": MADE, "from_time": MADE.replace(hour=5), "to_time": MADE, "command": ""}
    return {**row, "replay_client_ids": [], "replay_before_s": [], "replay_after_s": [], **given}


def test_shares_are_percentages_and_times_have_their_zone() -> None:
    (_, _, line) = [text.plain for text in FORECAST.to_table([forecast(hits_limit_at=MADE)], None)]
    assert re.split(r"\s{2,}", line) == [
        "c", "producer_byte_rate", "batch", "-", "1", "81.7 %", "2026-11-20 10:05 UTC", "100.0 %", "-", "why",
    ]  # fmt: skip
    page = FORECAST.to_html([forecast(hits_limit_at=MADE)])
    assert '<td class="time">2026-11-20 10:05 UTC</td><td class="number">100.0 %</td><td class="number">-</td>' in page
    assert re.findall(r'<div class="below">(.*)</div>', page) == ["why"]


def test_page_says_when_it_was_made_and_of_what() -> None:
    assert "<p>Made 2026-11-20 10:05 UTC.</p>" in FORECAST.to_html([forecast()])
    made = "<p>Made 2026-11-20 10:05 UTC, of the usage from 2026-11-20 05:05 UTC to 2026-11-20 10:05 UTC.</p>"
    assert made in CAPACITY.to_html([capacity()])
    assert "<p>Made" not in CAPACITY.to_html([])


def test_command_and_replay_stand_below_their_row() -> None:
    replayed = {"replay_client_ids": ["<b>", ""], "replay_before_s": [4140.76, 2.0], "replay_after_s": [0.0, 0.5]}
    rows = [capacity(command=COMMAND, **replayed), capacity()]
    page = CAPACITY.to_html(rows)
    assert page.count("<tbody>") == 2
    told = (
        "{} was throttled for 1.2 h, with the suggested limit for 0 ms; a client without an id was throttled for 2.0 s"
    )
    below = re.findall(r'<div class="below">(.*)</div>', page)
    assert below == [f"{told.format('&lt;b&gt;')}, with the suggested limit for 500 ms", f"<code>{COMMAND}</code>"]
    assert told.format("<b>") in "".join(line.plain for line in CAPACITY.to_table(rows, None))
