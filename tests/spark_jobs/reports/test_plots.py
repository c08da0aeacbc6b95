"""Plots of the reports, also with hostile names and unusual numbers."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_jobs.reports.plots import forecast_plots, headroom_plots
from tests.spark_jobs.reports.report_rows import FREE, HOSTILE, WINDOW, row


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


def shared(client_id: str, usage: float) -> dict[str, Any]:
    return row(client_id=client_id, usage=usage, shared_with=1)


def test_report_has_lines_heat_map_and_shared_quota_members() -> None:
    drawn = headroom_plots([shared("greedy", 160_000.0), shared("modest", 10_000.0), FREE])
    lines, heat_map, culprits = map(svg, drawn.values())
    assert list(drawn) == ["Utilisation over time", "Clients by time", "Who takes the shared quotas"]
    whole = "customer-360-profile-enricher (alice, producer_byte_rate, c)"
    assert all(whole in svg(plot) for plot in headroom_plots([shared(whole.partition(" ")[0], 1.0)]).values())
    assert all("greedy (alice" in plot and "modest (alice" in plot for plot in (lines, heat_map, culprits))
    assert "free (alice" not in lines
    assert "free (alice" in heat_map
    assert "free (alice" not in culprits
    assert "stroke-dasharray" in lines  # the limit


def test_client_names_are_escaped() -> None:
    for image in headroom_plots([HOSTILE | {"shared_with": 1}]).values():
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
    made_at = datetime(2026, 11, 20, 10, tzinfo=UTC) + timedelta(minutes=5)
    quantiles = {"p10": [0.1, 0.2], "p50": [0.5, 0.6], "p90": [0.9, float("inf")]}
    rows = [row(client_id=name, made_at=made_at, **quantiles) for name in ("<one>", "two")]
    (image,) = forecast_plots(rows).values()
    drawn = svg(image)
    assert "&lt;one&gt; (alice" in drawn
    assert "two (alice" in drawn


def test_forecasts_are_in_the_order_of_the_rows_and_say_how_many_are_left_out() -> None:
    made_at = datetime(2026, 11, 20, 10, tzinfo=UTC)
    fan = {"made_at": made_at, "p10": [0.1], "p50": [0.5], "p90": [0.9]}
    names = [f"{letter}-client" for letter in "hdbeacfg"]
    ((title, image),) = forecast_plots([row(client_id=name, **fan) for name in names]).items()
    assert title.endswith(", the first 6 of 8 buckets")
    assert list(dict.fromkeys(re.findall(r"\w-client", svg(image)))) == names[:6]
