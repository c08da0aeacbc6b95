"""The report of quota-headroom in its four formats, and the plots of reports, also with hostile names."""

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.reports import headroom_report as report
from spark_jobs.reports.plots import forecast_plots, headroom_plots
from spark_jobs.reports.tables import FORECAST

WINDOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def row(**changed: Any) -> dict[str, Any]:
    """Columns that are not named here are empty."""
    columns = {
        **{column.name: "" if pa.types.is_string(column.type) else None for column in report.COLUMNS},
        "cluster": "c",
        "quota_key": "producer_byte_rate",
        "user": "alice",
        "client_id": "app",
        "broker_id": 1,
        "limit": 200_000.0,
        "usage": 170_000.0,
        "utilization": 0.85,
        "utilization_p95": 0.9,
        "throttle_ms": 0.0,
        "level": "warn",
        "reason": "at 85.0 % of producer_byte_rate",
        "impact": "none",
        "software_name": "apache-kafka-java",
        "software_version": "4.3.1",
        "instances": 1,
        "matched_entity": "client-id=app",
        "headroom": 30_000.0,
        "group_usage": 170_000.0,
        "shared_with": 0,
        "team": "unowned",
        "instant_level": "warn",
        "source": "gateway",
        "complete": 1,
        "trend_per_min": 1_500.0,
        "burst_credit": 300_000.0,
        "window_start": WINDOW,
        "window_s": 60,
        "bytes": 5_100_000,
        "range_throttle_ms": 0.0,
        "range_throttled_s": 0.0,
        "history_at": [WINDOW - timedelta(minutes=1), WINDOW],
        "history": [0.5, 0.9],
    }
    return columns | changed


NO_LIMIT = {"limit": None, "utilization": None, "headroom": None, "trend_per_min": None, "burst_credit": None}
FREE = row(client_id="free", **NO_LIMIT, level="ok", matched_entity="")
EARLIER = {"range_throttle_ms": 800.0, "range_throttled_s": 12.0, "last_throttled": WINDOW - timedelta(minutes=5)}
HOSTILE = row(client_id="<script>alert(1)</script>\x1b[2J\n[bold]", reason="\x1b]0;title\x07 & <b>")


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


def test_reason_names_what_the_client_feels() -> None:
    felt = row(impact="losing", impact_reason="7 records failed or expired")
    assert report.why(felt) == "at 85.0 % of producer_byte_rate; losing: 7 records failed or expired"
    assert report.why(row(impact="none", impact_reason="client felt produce throttle 9 ms")) == row()["reason"]


def test_reason_names_who_makes_a_client_slow() -> None:
    slowed = {"slowed_by_user": "batch", "slowed_by_client_id": "app", "slowed_at_broker_id": 2}
    victim = row(level="ok", request_latency_ms_max=2400.0, latency_before_ms=300.0, **slowed)
    said = "requests take up to 2.4 s, 300 ms before: user=batch takes most of broker 2"
    assert report.why(victim) == f"{row()['reason']}; {said}"
    assert said in shown(victim)


def test_json_has_promised_names_and_null_for_non_numbers() -> None:
    reported = json.loads(report.REPORT.to_json([row(eta_s=float("nan"), limit=float("inf")), FREE]))
    assert list(reported[0]) == report.COLUMNS.names
    assert (reported[0]["eta_s"], reported[0]["limit"], reported[1]["utilization"]) == (None, None, None)
    assert reported[0]["window_start"] == "2026-11-20T10:00:00Z"


def test_page_is_self_contained_and_escapes_names() -> None:
    page = Text(report.to_html([row(), FREE, HOSTILE]))
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert {"script", "link", "b"}.isdisjoint(page.tags)
    assert "<script>alert(1)</script>" in page.text
    assert "85.0 %" in page.text


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
    assert "No client was active" in Text(report.to_html([])).text
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
    (written,) = json.loads(report.REPORT.to_json([long]))
    assert (written["client_id"], written["user"], written["reason"]) == (
        long["client_id"],
        long["user"],
        long["reason"],
    )


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


@pytest.mark.parametrize("rows", [[], [row(), FREE]], ids=["none", "two"])
def test_three_files_have_the_same_rows(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    report.write(rows, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("headroom.json", "headroom.parquet", "report.html"),
    }
    table = pq.read_table(tmp_path / "out" / "headroom.parquet")
    assert (table.to_pylist(), table.schema.equals(report.COLUMNS)) == (rows, True)
    written = json.loads((tmp_path / "out" / "headroom.json").read_text())
    assert [client["client_id"] for client in written] == [client["client_id"] for client in rows]


def svg(image: str) -> str:
    kind, _, content = image.partition(",")
    assert kind == "data:image/svg+xml;base64"
    drawn = base64.b64decode(content).decode()
    assert drawn.startswith("<svg")
    assert set(re.findall(r"https?://[^\"' ]+", drawn)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    return drawn


def test_report_has_lines_and_a_heat_map() -> None:
    whole = "customer-360-profile-enricher"
    drawn = headroom_plots([row(client_id=whole), row(client_id="modest"), FREE])
    assert list(drawn) == ["Utilisation over time", "Clients by time"]
    lines, heat_map = map(svg, drawn.values())
    assert all(
        f"{whole} (alice, producer_byte_rate, c)" in plot and "modest (alice" in plot for plot in (lines, heat_map)
    )
    assert ("free (alice" in lines, "free (alice" in heat_map) == (False, True)
    assert "stroke-dasharray" in lines  # the limit


def test_client_names_are_escaped() -> None:
    for image in headroom_plots([HOSTILE]).values():
        drawn = svg(image)
        assert "<script>alert" not in drawn
        assert "&lt;script&gt;alert" in drawn
        assert "\x1b" not in drawn


def test_plots_without_data_are_omitted() -> None:
    assert headroom_plots([]) == {}
    once = row(history_at=[WINDOW], history=[0.5])
    assert list(headroom_plots([once])) == ["Clients by time"]
    assert forecast_plots([]) == {}


def test_infinite_and_missing_utilization_are_drawn_without_nan() -> None:
    for history in ([0.5, float("inf")], [0.5, None]):  # None: as in JSON
        assert "NaN" not in svg(headroom_plots([row(history=history)])["Clients by time"])


def test_forecast_has_a_fan_per_quota_group() -> None:
    made_at = WINDOW + timedelta(minutes=5)
    quantiles = {"p10": [0.1, 0.2], "p50": [0.5, 0.6], "p90": [0.9, float("inf")]}
    rows = [row(client_id=name, made_at=made_at, **quantiles) for name in ("<one>", "two")]
    (image,) = forecast_plots(rows).values()
    drawn = svg(image)
    assert "&lt;one&gt; (alice" in drawn
    assert "two (alice" in drawn


def test_forecasts_are_in_the_order_of_the_rows_and_say_how_many_are_left_out() -> None:
    fan = {"made_at": WINDOW, "p10": [0.1], "p50": [0.5], "p90": [0.9]}
    names = [f"{letter}-client" for letter in "hdbeacfg"]
    ((title, image),) = forecast_plots([row(client_id=name, **fan) for name in names]).items()
    assert title.endswith(", the first 6 of 8 buckets")
    assert list(dict.fromkeys(re.findall(r"\w-client", svg(image)))) == names[:6]
