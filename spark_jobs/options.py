"""The options of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_jobs.time_range import TimeRange
from spark_jobs.transforms.thresholds import Thresholds

MOST_ROWS = 10_000  # of a report by client, unless more are asked for


@dataclass(frozen=True, slots=True)
class Options:
    """`url`: SQL endpoint of Headroom or of a ClickHouse server. An empty filter matches everything."""

    url: str
    when: TimeRange
    recent: bool = False  # the range ends now: earlier windows with late input are recomputed
    password: str = field(default="", repr=False)
    source: str = "gateway"
    cluster: str = ""
    user: str = ""
    client_id: str = ""
    top: int = 0  # rows of the report; 0: all, of a report by client MOST_ROWS
    thresholds: Thresholds = field(default_factory=Thresholds)
    checkpoint: Path | None = None  # directory of a stream; None: one run over `when`
    once: bool = False  # a stream ends when all present input is processed
    master: str = ""  # Spark's master URL; '': that of spark-submit, else local

    @property
    def most(self) -> int:
        """Rows of a report by client."""
        return self.top or MOST_ROWS

    def chosen(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Filters and truncates report rows; keeps their order."""
        found = [row for row in rows if self.user in ("", row["user"]) and self.client_id in ("", row["client_id"])]
        return found[: self.top] if self.top else found
