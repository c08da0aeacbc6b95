"""The report in its four formats, also with hostile names."""

from __future__ import annotations

import json
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_jobs.reports import headroom_report as report
from spark_jobs.reports.tables import FORECAST
from tests.spark_jobs.reports.report_rows import EARLIER, FREE, HOSTILE, WINDOW, row


class Text(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_worst_first_orders_by_level_throttle_utilization_and_name() -> None:
    rows = [
        row(client_id="ok", level="ok", utilization=0.1),
        row(client_id="free", level="ok", utilization=None),
        row(client_id="short", level="throttled", throttle_ms=10.0, utilization=2.0),
        row(client_id="b", level="critical", utilization=0.96),
        row(client_id="a", level="critical", utilization=0.96),
        row(client_id="long", level="throttled", throttle_ms=900.0, utilization=0.5),
        row(client_id="earlier", level="ok", utilization=0.0, **EARLIER),
    ]
    in_order = ["long", "short", "a", "b", "earlier", "ok", "free"]
    assert [client["client_id"] for client in report.worst_first(rows)] == in_order


def test_worst_first_puts_harm_near_the_limit_before_harmless_throttling() -> None:
    rows = [
        row(client_id="harmless", level="throttled", throttle_ms=900.0, impact="none"),
        row(client_id="waits", level="warn", impact="delayed"),
        row(client_id="loses", level="warn", impact="losing"),
        row(client_id="lags", level="throttled", impact="falling-behind"),
        row(client_id="elsewhere", level="ok", impact="losing"),  # not by this quota
        row(client_id="silent", level="throttled", throttle_ms=10.0, impact="unknown"),
    ]
    in_order = ["loses", "lags", "waits", "harmless", "silent", "elsewhere"]
    assert [client["client_id"] for client in report.worst_first(rows)] == in_order


def test_reason_names_what_the_client_feels() -> None:
    felt = row(impact="losing", impact_reason="7 records failed or expired")
    assert report.why(felt) == "at 85.0 % of producer_byte_rate; losing: 7 records failed or expired"
    assert report.why(row(impact="none", impact_reason="client felt produce throttle 9 ms")) == row()["reason"]


def test_reason_names_who_makes_a_client_slow() -> None:
    slowed = {"slowed_by_user": "batch", "slowed_by_client_id": "backfill", "slowed_at_broker_id": 2}
    victim = row(level="ok", request_latency_ms_max=2400.0, latency_before_ms=300.0, **slowed)
    said = "requests take up to 2.4 s, 300 ms before: backfill takes most of broker 2"
    assert report.why(victim) == f"{row()['reason']}; {said}"
    assert said in shown(victim)


def test_json_has_promised_names_and_null_for_non_numbers() -> None:
    written = report.REPORT.to_json([row(eta_s=float("nan"), limit=float("inf")), FREE])
    assert report.from_json(written) == [row(limit=None), FREE]
    reported = json.loads(written)
    assert list(reported[0]) == report.COLUMNS.names
    assert (reported[0]["eta_s"], reported[0]["limit"], reported[1]["utilization"]) == (None, None, None)
    assert reported[0]["window_start"] == "2026-11-20T10:00:00Z"


def test_page_is_self_contained_and_escapes_names() -> None:
    page = Text(report.to_html([row(), FREE, HOSTILE]))
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert {"script", "link", "b"}.isdisjoint(page.tags)
    assert "<script>alert(1)</script>" in page.text
    assert "85.0 %" in page.text


def test_page_without_rows_has_a_notice() -> None:
    assert "No client was active" in Text(report.to_html([])).text


def shown(*rows: dict[str, Any], width: int | None = 400) -> str:
    """The table as printed to a terminal."""
    return "\n".join(line.plain for line in report.to_table(rows, width))


def test_table_escapes_control_sequences() -> None:
    table = shown(row(), HOSTILE)
    assert "\x1b[2J" not in table
    assert "\x1b]0;" not in table
    assert "<script>alert(1)</script>\\x1b[2J\\n[bold]" in table
    for cell in ("warn", "app", "alice", "170.0 kB/s", "200.0 kB/s", "85.0 %"):
        assert cell in table


def test_table_shows_the_window() -> None:
    assert "window of 60 s from 2026-11-20 10:00:00 UTC" in shown(row(), FREE)
    table = shown(row(), row(client_id="gone", window_start=WINDOW - timedelta(days=1))).splitlines()
    assert table[0].rstrip() == "each client in its latest window, of 60 s, UTC"
    windows = [line.rstrip()[-19:] for line in table if line.startswith("warn ") and ":00:00" in line]
    assert windows == ["2026-11-20 10:00:00", "2026-11-19 10:00:00"]


@pytest.mark.parametrize("width", [80, 200])
def test_table_fits_a_terminal_without_a_cut_number_or_name(width: int) -> None:
    name = "orders-of-the-payments-team-01"
    busy = row(client_id=name, user=name, usage=302_400.0, shared_with=2, group_usage=999_900.0, throttle_ms=350.0)
    lines = shown(busy, FREE, width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert name in lines[2]
    assert "85.0 %" in lines[2]
    assert "200.0 kB/s" in lines[2]
    assert any(line.startswith("warn ") and name in line and ":" in line for line in lines[3:])
    if width == 200:
        assert all(cell in lines[2] for cell in ("302.4 kB/s", "999.9 kB/s of 3 clients", "350 ms"))
    else:
        assert lines[4].startswith("(no room in 80 columns for: ")


def test_a_report_without_rows_says_why() -> None:
    assert shown() == "No client was active in the range."
    assert [line.plain for line in FORECAST.to_table([], 80)] == [
        "When quotas are reached",
        "No bucket has a forecast: there is no usage with a limit in the range, or less than four hours of it.",
    ]


def test_long_names_are_truncated_except_in_json() -> None:
    long = row(client_id="i" * 300, user="u" * 300, reason=f"at 85.0 % of client-id={'i' * 300}, broker 1")
    cut = "i" * 59 + "\N{HORIZONTAL ELLIPSIS}"
    for reported in (shown(long), Text(report.to_html([long])).text):
        assert cut in reported
        assert "i" * 61 not in reported
        assert "u" * 61 not in reported
        assert "broker 1" in reported
    assert report.from_json(report.REPORT.to_json([long])) == [long]


def test_throttling_before_the_latest_window_is_reported() -> None:
    earlier = row(level="ok", reason="at 1.0 %", **EARLIER)
    said = "at 1.0 %; throttled 800 ms at most earlier, last in the window of 2026-11-20 09:55:00"
    table = shown(earlier, row(client_id="never"))
    assert any(line.startswith("level ") and " earlier " in line for line in table.splitlines())
    assert f"ok app: {said}" in table
    assert "never:" in table  # listed because its level is not ok
    page = Text(report.to_html([earlier])).text
    assert said in page
    assert "earlier 800 ms" in page
    now = row(level="throttled", throttle_ms=900.0, **EARLIER)
    assert "earlier" not in shown(now, FREE)
    assert "earlier 800 ms" not in Text(report.to_html([now])).text


def test_shared_quota_shows_group_and_client_usage() -> None:
    shared = row(usage=20_000.0, group_usage=170_000.0, shared_with=2)
    for reported in (shown(shared, FREE), Text(report.to_html([shared])).text):
        assert "20.0 kB/s" in reported
        assert "170.0 kB/s of 3 clients" in reported
    assert "all that share" in shown(shared)
    assert "all that share" not in shown(row(), FREE)


def test_write_creates_three_files_with_the_same_rows(tmp_path: Path) -> None:
    rows = [row(), FREE]
    report.write(rows, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "headroom.json",
        "headroom.parquet",
        "report.html",
    ]
    assert pq.read_table(tmp_path / "out" / "headroom.parquet").to_pylist() == rows
    assert [client["client_id"] for client in json.loads((tmp_path / "out" / "headroom.json").read_text())] == [
        "app",
        "free",
    ]


def test_report_without_rows_is_written(tmp_path: Path) -> None:
    report.write([], tmp_path)
    assert json.loads((tmp_path / "headroom.json").read_text()) == []
    assert pq.read_table(tmp_path / "headroom.parquet").schema.equals(report.COLUMNS)
