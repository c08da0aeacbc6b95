"""Plots of the HTML reports: Vega-Lite charts by altair, drawn to SVG in this process.

vl-convert holds Vega and its fonts, so a page needs no network. Each plot is a separate image (`data:` URI), so ids of
different SVGs cannot clash and scripts in an SVG do not run. Imported only for HTML: altair and vl-convert take seconds
of CPU and 230 MB.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from exporters.printable import printable, shortened
from spark_jobs.reports.report import Row
from spark_jobs.time_range import STEP_MS

Chart = Any  # altair's type hints do not tell which kind of chart a method returns

_LINES = 8  # maximum number of clients in a line plot
_ROWS = 30  # maximum number of clients in a heat map
_FANS = 6
_WIDTH = 760
_NAME_CHARS = 48
_HIGHEST = 2.0  # higher utilisation is drawn at this value


def headroom_plots(rows: Sequence[Row]) -> Mapping[str, str]:
    """Title -> image, from rows of quota-headroom, worst first. Empty plots are left out."""
    charts: dict[str, Chart | None] = {
        "Utilisation over time": _utilisation(rows),
        "Clients by time": _heat_map(rows),
    }
    return {title: _image(chart) for title, chart in charts.items() if chart is not None}


def forecast_plots(rows: Sequence[Row]) -> Mapping[str, str]:
    """Title -> image, from rows of throttle-forecast."""
    points = [
        {
            "bucket": f"{_client(row)} at broker {row['broker_id']}",
            "at": pd.Timestamp(row["made_at"]) + pd.Timedelta(milliseconds=STEP_MS * (step + 1)),
            **{name: min(row[name][step], _HIGHEST) for name in ("p10", "p50", "p90")},
        }
        for row in rows[:_FANS]
        for step in range(len(row["p50"]))
    ]
    if not points:
        return {}
    base = alt.Chart(_frame(points, "at"))
    at, used = _time("at"), alt.Y("p10:Q", title="of the limit", axis=_PERCENT)
    fan = base.mark_area(opacity=0.3).encode(x=at, y=used, y2="p90:Q")
    layers = alt.layer(fan, base.mark_line().encode(x=at, y="p50:Q"), _limit(base)).properties(
        width=_WIDTH // 2, height=140
    )
    urgency = list(dict.fromkeys(point["bucket"] for point in points))
    chart = layers.facet(alt.Facet("bucket:N", title=None, sort=urgency), columns=2)
    shown = "" if len(rows) <= _FANS else f", the first {_FANS} of {len(rows)} buckets"
    return {f"Forecast: the median, the band in which eight of ten outcomes are, and the limit{shown}": _image(chart)}


_PERCENT = alt.Axis(format="%")
_LABEL = 480  # pixels: Vega cuts longer labels, and its own limit is less than a client's name
_NAMED = alt.Axis(labelLimit=_LABEL)


def _utilisation(rows: Sequence[Row]) -> Chart | None:
    points = _history([row for row in rows if row["utilization"] is not None][:_LINES])
    if len({point["at"] for point in points}) < 2:
        return None
    base = alt.Chart(_frame(points, "at"))
    lines = base.mark_line().encode(
        x=_time("at"),
        y=alt.Y("used:Q", title="of the limit", axis=_PERCENT),
        color=alt.Color("client:N", title=None, sort=None, legend=alt.Legend(labelLimit=_LABEL)),
    )
    return alt.layer(lines, _limit(base)).properties(width=_WIDTH, height=240)


def _heat_map(rows: Sequence[Row]) -> Chart | None:
    points = _history(rows[:_ROWS])
    if not points:
        return None
    colour = alt.Scale(scheme="orangered", domain=[0, 1], clamp=True)
    return (
        alt.Chart(_frame(points, "at"))
        .mark_rect()
        .encode(
            x=alt.X("utcyearmonthdatehoursminutes(at):O", title="UTC", axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("client:N", title=None, sort=None, axis=_NAMED),
            color=alt.Color("used:Q", title="of the limit", scale=colour, legend=alt.Legend(format="%")),
        )
        .properties(width=_WIDTH)
    )


def _history(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {"client": _client(row), "at": at, "used": min(used, _HIGHEST)}
        for row in rows
        for at, used in zip(row["history_at"], row["history"], strict=True)
        if used is not None  # JSON cannot represent infinity
    ]


def _limit(base: Chart) -> Chart:
    return base.mark_rule(color="firebrick", strokeDash=[6, 3]).encode(y=alt.datum(1.0))


def _time(name: str) -> alt.X:
    return alt.X(
        f"{name}:T", title="UTC", scale=alt.Scale(type="utc"), axis=alt.Axis(format="%H:%M", labelOverlap=True)
    )


def _client(row: Row) -> str:
    """Label with client-id, user and quota; unique within a report."""
    return f"{_short(row['client_id'])} ({_short(row['user'])}, {row['quota_key']}, {_short(row['cluster'])})"


def _short(name: str) -> str:
    return shortened(printable(name), _NAME_CHARS)


def _frame(rows: Sequence[Mapping[str, Any]], *times: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for name in times:
        frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame


def _image(chart: Chart) -> str:
    svg = vl_convert.vegalite_to_svg(chart.to_dict())
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
