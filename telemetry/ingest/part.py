"""What goes into the store at once: a batch of the spool, or a part of a large one, as rows of tables. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from exporters.model import ClientInstance, QuotaLimit, RecordKind, UsageSample
from exporters.spool.records import decode_instance, decode_limits, decode_usage
from telemetry.decode.decoder import Outcome
from telemetry.ingest import arrow_tables as tables
from telemetry.ingest.counts import Counts

_PART_ROWS = 250_000  # a batch that holds more is written in parts: payloads may be bombs
_PART_BYTES = 256 << 20  # the same for what payloads are once decompressed


@dataclass(slots=True)
class Part:
    """What goes into the store at once: a spool batch, or a part of a large one."""

    outcomes: list[Outcome] = field(default_factory=list)
    instances: list[ClientInstance] = field(default_factory=list)
    samples: list[UsageSample] = field(default_factory=list)
    limits: list[QuotaLimit] = field(default_factory=list)
    kept: Counter[RecordKind] = field(default_factory=Counter)
    rows: int = 0
    nbytes: int = 0  # of payloads, decompressed
    hours: list[int] = field(default_factory=list)  # with points; known once there are tables
    clamped_timestamps: int = 0  # of what was decoded by template: as `hours`

    def add_push(self, outcome: Outcome) -> None:
        """A push, kept or not: it leaves a row either way."""
        self.outcomes.append(outcome)
        self.rows += 1 + outcome.points
        self.nbytes += outcome.uncompressed_bytes

    def add_record(self, kind: RecordKind, body: bytes) -> None:
        """A record that is no push. Raises ValueError, TypeError when it cannot be read."""
        if kind is RecordKind.INSTANCE:
            self.instances.append(decode_instance(body))
            self.rows += 1
        elif kind is RecordKind.USAGE:
            samples = decode_usage(body)
            self.samples += samples
            self.rows += len(samples)
        else:
            limits = decode_limits(body)
            self.limits += limits
            self.rows += len(limits)

    def is_full(self) -> bool:
        """Whether it goes into the store before anything is added."""
        return self.rows >= _PART_ROWS or self.nbytes >= _PART_BYTES

    def tables(self, token: str, now_ms: int) -> Iterator[tuple[str, RecordKind, pa.Table]]:
        """The rows of each table, and what kind of record is lost when the store refuses them."""
        # Series first: whoever sees a point finds its series.
        yield "series", RecordKind.PUSH, tables.series_table(self.outcomes)
        points, self.hours, self.clamped_timestamps = tables.points_table(self.outcomes)
        yield "points", RecordKind.PUSH, points
        yield "client_histograms", RecordKind.PUSH, tables.histograms_table(self.outcomes)
        yield "pushes", RecordKind.PUSH, tables.pushes_table(self.outcomes, token)
        yield "client_instances", RecordKind.INSTANCE, tables.instances_table(self.outcomes, self.instances)
        yield "quota_usage", RecordKind.USAGE, tables.usage_table(self.samples, now_ms)
        yield "quota_limits", RecordKind.LIMITS, tables.limits_table(self.limits, now_ms)

    def count_points(self, counts: Counts) -> None:
        """What became of the points, once they are written."""
        counts.clamped_timestamps += self.clamped_timestamps
        for outcome in self.outcomes:
            counts.points_written += outcome.points
            counts.points_dropped += outcome.decoded.dropped
            counts.clamped_timestamps += outcome.decoded.clamped_timestamps
