"""How templates show values: times with their zone, ages, clients' links. jinja2 escapes every value."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode
from uuid import UUID

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from exporters.model import UNOWNED
from exporters.printable import printable
from headroom.web.runbooks import inline
from headroom.web.usage_chart import metric_unit
from quota_metrics.amounts import duration_text, of_limit_text, quota_word, rate_text, share_text
from quota_metrics.verdict.impact import HARMS, impact_text
from quota_metrics.verdict.victims import slowed_text
from quota_metrics.verdict.window import SUMMED
from telemetry.subscriptions.java.hash import uuid_text

TEMPLATES = Path(__file__).parent / "templates"


def environment() -> Environment:
    """Of the templates; static/live.js shows `<time data-at>` in the reader's own zone when asked to."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "rate": rate_text,
        "of_limit": of_limit_text,
        "quota_word": quota_word,
        "metric_unit": metric_unit,
        "inline": inline,
        "share": share_text,
        "duration": duration_text,
        "printable": printable,
        "clock": clock,
        "moment": moment,
        "ago": ago_text,
        "kafka_id": lambda instance: uuid_text(UUID(instance).bytes),  # as Kafka's tools and selectors spell it
        "figure": lambda number: f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}",
        "thousands": lambda number: f"{number:,}",
        "slowed": lambda row: slowed_text(row["latency_ms"], row["latency_before_ms"]),
        "impact": lambda row: impact_text(row["impact"], row["impact_reason"]),
    }
    made.globals |= {"query": urlencode, "unowned": UNOWNED, "harms": HARMS, "summed": SUMMED}
    made.globals["now"] = lambda: moment(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}")  # of answers that are not refreshed
    return made


def clock(at_s: int) -> Markup:
    """`15:44:00 UTC`."""
    at = datetime.fromtimestamp(at_s, UTC)
    return _time(at, f"{at:%H:%M:%S} UTC", "clock")


def moment(text: str | None) -> Markup | str:
    """A time of the store, as `2026-11-23 15:44:00.123`, to the second; `-` for none and for 1970."""
    if not text or text.startswith("1970-"):
        return "-"
    at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return _time(at, f"{at:%Y-%m-%d %H:%M:%S}", "moment")


def _time(at: datetime, text: str, form: str) -> Markup:
    stamp, at_s = f"{at:%Y-%m-%dT%H:%M:%SZ}", int(at.timestamp())
    return Markup('<time datetime="{}" data-at="{}" data-form="{}">{}</time>').format(stamp, at_s, form, text)


def ago_text(age_s: float) -> str:
    """`12 s ago`, `3 min ago`, `5 h ago`, `2 days ago`."""
    for unit, size_s in (("days", 172_800), ("h", 7_200), ("min", 120)):
        if age_s >= size_s:
            return f"{age_s / (86_400 if unit == 'days' else size_s / 2):.0f} {unit} ago"
    return f"{age_s:.0f} s ago"
