"""The report in its four forms, from hostile names as well."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from spark_jobs import report

WINDOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def row(**given: Any) -> dict[str, Any]:
    known = {
        "cluster": "c",
        "quota_key": "producer_byte_rate",
        "user": "alice",
        "client_id": "app",
        "broker_id": 1,
        "limit": 200_000.0,
        "usage": 170_000.0,
        "utilization": 0.85,
        "throttle_ms": 0.0,
        "level": "warn",
        "reason": "at 85.0 % of producer_byte_rate",
        "software_name": "apache-kafka-java",
        "software_version": "4.3.1",
        "instances": 1,
        "matched_entity": "client-id=app",
        "headroom": 30_000.0,
        "group_usage": 170_000.0,
        "shared_with": 0,
        "usage_p95": 180_000.0,
        "usage_max": 190_000.0,
        "throttled_s": 0.0,
        "client_throttle_ms_max": None,
        "eta_s": None,
        "window_start": WINDOW,
        "window_s": 60,
    }
    assert list(known) == report.COLUMNS.names
    return known | given


FREE = row(client_id="free", limit=None, utilization=None, headroom=None, level="ok", matched_entity="")
HOSTILE = row(client_id="<script>alert(1)</script>\x1b[2J\n[bold]", reason="\x1b]0;title\x07 & <b>")


class Text(HTMLParser):
    """The tags and the text of a page."""

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


def test_worst_first_is_by_level_then_throttle_then_utilisation_then_name() -> None:
    rows = [
        row(client_id="ok", level="ok", utilization=0.1),
        row(client_id="free", level="ok", utilization=None),
        row(client_id="short", level="throttled", throttle_ms=10.0, utilization=2.0),
        row(client_id="b", level="critical", utilization=0.96),
        row(client_id="a", level="critical", utilization=0.96),
        row(client_id="long", level="throttled", throttle_ms=900.0, utilization=0.5),
    ]
    assert [each["client_id"] for each in report.worst_first(rows)] == ["long", "short", "a", "b", "ok", "free"]


def test_json_has_the_promised_names_and_null_for_what_is_not_a_number() -> None:
    told = json.loads(report.to_json([row(eta_s=float("nan"), limit=float("inf")), FREE]))
    assert list(told[0]) == report.COLUMNS.names
    assert (told[0]["eta_s"], told[0]["limit"], told[1]["utilization"]) == (None, None, None)
    assert told[0]["window_start"] == "2026-11-20T10:00:00Z"


def test_the_page_needs_nothing_else_and_shows_names_as_they_are() -> None:
    page = Text(report.to_html([row(), FREE, HOSTILE]))
    assert page.links == []
    assert {"script", "link", "img", "b"}.isdisjoint(page.tags)
    assert "<script>alert(1)</script>" in page.text
    assert "85.0 %" in page.text


def test_a_page_without_rows_says_so() -> None:
    assert "No client was active" in Text(report.to_html([])).text


def test_the_table_lets_no_control_sequence_through() -> None:
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(report.to_table([row(), HOSTILE]))
    shown = captured.get()
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    assert "<script>alert(1)</script>\ufffd[2J\ufffd[bold]" in shown
    for cell in ("warn", "app", "alice", "170.0 kB/s", "200.0 kB/s", "85.0 %"):
        assert cell in shown


def test_write_leaves_three_files_that_say_the_same(tmp_path: Path) -> None:
    rows = [row(), FREE]
    report.write(rows, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "headroom.json",
        "headroom.parquet",
        "report.html",
    ]
    assert pq.read_table(tmp_path / "out" / "headroom.parquet").to_pylist() == rows
    assert [each["client_id"] for each in json.loads((tmp_path / "out" / "headroom.json").read_text())] == [
        "app",
        "free",
    ]


def test_no_rows_are_a_report_too(tmp_path: Path) -> None:
    report.write([], tmp_path)
    assert json.loads((tmp_path / "headroom.json").read_text()) == []
    assert pq.read_table(tmp_path / "headroom.parquet").schema.equals(report.COLUMNS)


def test_rates_have_the_unit_of_their_quota() -> None:
    def f(value: float | None, quota_key: str, expected: str) -> None:
        assert report.rate(value, quota_key) == expected

    f(None, "producer_byte_rate", "-")
    f(0.0, "producer_byte_rate", "0 B/s")
    f(999.0, "consumer_byte_rate", "999 B/s")
    f(1500.0, "consumer_byte_rate", "1.5 kB/s")
    f(2.5e6, "producer_byte_rate", "2.5 MB/s")
    f(12.5, "request_percentage", "12.5 %")
    f(5.0, "controller_mutation_rate", "5.0 mutations/s")


def test_durations_and_percentages() -> None:
    assert [report.duration(value) for value in (0.0, 40.0, 1250.0)] == ["-", "40 ms", "1.2 s"]
    assert [report.percent(value) for value in (None, 0.0, 1.234)] == ["-", "0.0 %", "123.4 %"]
