"""Follows the spool: records -> batches of rows -> the store, each batch under its own deduplication token.

One bad record fails alone: it is dropped with a reason and counted; a push leaves its row in `pushes` with the code
that Kafka would have answered, and itself in the quarantine. What the store cannot take now is tried again, the same
rows under the same token; what it will never take is dropped, counted, and told once per table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from exporters.clickhouse.store import PermanentWriteError, Store, TransientWriteError
from exporters.model import DropReason, Push, RecordKind
from exporters.spool.reader import Batch, SpoolReader
from exporters.spool.records import decode_push
from telemetry.decode.budgets import Limits
from telemetry.decode.client_budgets import ClientBudgets
from telemetry.decode.decoder import Decoder
from telemetry.decode.series import identity
from telemetry.decode.series_cache import KnownSeries
from telemetry.ingest.counts import Counts
from telemetry.ingest.part import Part
from telemetry.ingest.quarantine import Quarantine
from telemetry.ingest.rollups import ROLL_UP, TouchedHours, roll_up_parameters

log = structlog.get_logger(__name__)

_SERIES_REWRITTEN_AFTER_MS = 3_600_000  # how old `last_seen` may grow


class Ingester:
    """One step at a time, on one thread."""

    def __init__(
        self,
        reader: SpoolReader,
        store: Store,
        quarantine: Quarantine,
        *,
        max_decompressed_bytes: int,
        rollup_interval_ms: int,
        max_records: int = 20_000,
        max_bytes: int = 16 << 20,
        max_known_series: int = 8_000_000,
        max_template_bytes: int = 128 << 20,
        limits: Limits = Limits(),
    ) -> None:
        """A batch has at most `max_records` records or `max_bytes`, one record at least."""
        self._reader = reader
        self._store = store
        self._quarantine = quarantine
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._known = KnownSeries(max_known_series, _SERIES_REWRITTEN_AFTER_MS)
        self._decoder = Decoder(
            max_decompressed_bytes=max_decompressed_bytes,
            limits=limits,
            known=self._known,
            max_template_bytes=max_template_bytes,
            client_budgets=ClientBudgets(),
        )
        self._told: set[str] = set()  # tables whose refusal was logged
        self._hours = TouchedHours(reader.note.get("hours", ()), rollup_interval_ms)
        self.counts = Counts.of_note(reader.note)

    def step(self, now_ms: int) -> int:
        """Write the next batch; how many records it held, 0 when there is none.

        Raises TransientWriteError: the next step tries the same batch again, under the same token.
        """
        try:
            batch = self._reader.next_batch(self._max_records, self._max_bytes)
            if batch is None:
                return 0
            self._reader.begin(batch)
            self._known.begin(now_ms)
            self._quarantine.begin()
            counts = self._write(batch, now_ms)
            counts.series_written = self._known.keep()
            counts += self.counts
            self._quarantine.flush(batch.token)
            self._reader.commit(batch, {**counts.as_note(), "hours": self._hours.as_list()})
        except OSError as exc:
            raise TransientWriteError(f"cannot follow the spool: {exc}") from exc
        self.counts = counts
        return len(batch.records)

    def roll_up(self, clock_ms: Callable[[], int]) -> bool:
        """Compute an hour that is due, if there is one; whether there was. A store that is away is asked again later.

        `clock_ms` is wall time.
        """
        hour = self._hours.due(began_ms := clock_ms())
        if hour is None:
            return False
        try:
            self._store.command(ROLL_UP, roll_up_parameters(hour))
        except (TransientWriteError, PermanentWriteError) as exc:
            log.warning("cannot compute the rollup of an hour, will be tried again", hour=hour, cause=str(exc))
            self._hours.failed(clock_ms())
        else:
            self._hours.computed(hour, max(0, clock_ms() - began_ms), clock_ms())
        return True

    def as_dict(self) -> dict[str, Any]:
        """The counts for /metrics; `received` = `written` + `dropped` + `buffered`, in records. Raises OSError."""
        counts = self.counts
        dropped = counts.dropped + Counter({DropReason.CORRUPT_RECORD: self._reader.totals.corrupt})
        written, lost, buffered = counts.written.total(), dropped.total(), self._reader.buffered()
        return {
            "received": written + lost + buffered[0],
            "written": written,
            "dropped": lost,
            "buffered": buffered[0],
            "buffered_bytes": buffered[1],
            "torn": self._reader.totals.torn,
            "drop_reasons": {reason.value: dropped[reason] for reason in DropReason},
            "by_kind": {kind.name.lower(): counts.written[kind] for kind in RecordKind},
            "points_written": counts.points_written,
            "point_drop_reasons": {reason.value: count for reason, count in counts.points_dropped.items()},
            "clamped_timestamps": counts.clamped_timestamps,
            "series_written": counts.series_written,
            "known_series": len(self._known),
            "templates": len(self._decoder.templates),
            "hours_to_roll_up": len(self._hours),
        }

    def _write(self, batch: Batch, now_ms: int) -> Counts:
        counts = Counts()
        for n, part in enumerate(self._parts(batch, counts, now_ms)):
            refused = self._insert(part, f"{batch.token}.{n}" if n else batch.token, now_ms)
            for kind, records in part.kept.items():
                if kind in refused:
                    counts.dropped[DropReason.REFUSED] += records
                else:
                    counts.written[kind] += records
            if RecordKind.PUSH in refused:
                self._known.forget()
            else:
                part.count_points(counts)
                self._hours.touch(part.hours, now_ms)
        return counts

    def _parts(self, batch: Batch, counts: Counts, now_ms: int) -> Iterator[Part]:
        """Where a batch is parted follows from its records alone, so that a replay parts it the same way."""
        part = Part()
        for kind, body in batch.records:
            reason = self._take(kind, body, part, now_ms)
            if reason is None:
                part.kept[kind] += 1
            else:
                counts.dropped[reason] += 1
            if part.is_full():
                yield part
                part = Part()
        yield part

    def _take(self, kind: RecordKind, body: bytes, part: Part, now_ms: int) -> DropReason | None:
        """Decode one record into a part; why not, if not."""
        try:
            if kind is RecordKind.PUSH:
                return self._take_push(decode_push(body), part, now_ms)
            part.add_record(kind, body)
        except (ValueError, TypeError) as exc:
            log.error("cannot read a spool record", kind=kind.name, nbytes=len(body), cause=repr(exc))
            return DropReason.CORRUPT_RECORD
        return None

    def _take_push(self, push: Push, part: Part, now_ms: int) -> DropReason | None:
        outcome, refusal = self._decoder.outcome(push)
        part.add_push(outcome)
        self._known.add(identity(push), outcome.decoded.series, now_ms)
        if refusal is None:
            return None
        self._quarantine.add(push, refusal)
        return refusal.reason

    def _insert(self, part: Part, token: str, now_ms: int) -> set[RecordKind]:
        """Write all rows of a part; the kinds of records of which the store refused rows for good."""
        refused = set()
        for table, kind, rows in part.tables(token, now_ms):
            if rows.num_rows == 0:
                continue
            try:
                self._store.insert(table, rows, token=f"{table}:{token}")
            except PermanentWriteError as exc:
                refused.add(kind)
                if table not in self._told:
                    self._told.add(table)
                    log.error("the store refuses rows for good", table=table, rows=rows.num_rows, cause=str(exc))
        return refused
