"""Follows the spool and writes each batch of records to the store with its own deduplication token.

A record that cannot be decoded, or whose rows the store does not accept, is dropped alone and counted by reason; a
push is also quarantined. While the store accepts nothing (TransientWriteError), the same batch is retried with the
same token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import structlog

from exporters.clickhouse.store import PermanentWriteError, QueryError, Store, TransientWriteError
from exporters.model import DropReason, Push, RecordKind
from exporters.spool.reader import Batch, SpoolReader
from exporters.spool.records import decode_push
from telemetry.decode.budgets import Limits
from telemetry.decode.client_budgets import ClientBudgets
from telemetry.decode.decoder import Decoder, Refusal
from telemetry.decode.series import identity
from telemetry.decode.series_cache import KnownSeries
from telemetry.ingest.bisecting_writer import TableWriter
from telemetry.ingest.counts import REPLAY_WRITER, Counts
from telemetry.ingest.crash_range import Suspect
from telemetry.ingest.decoded_batch import DecodedBatch, TableRows
from telemetry.ingest.progress import Progress, Stage
from telemetry.ingest.quarantine import Quarantine
from telemetry.ingest.recent_series import recent_series
from telemetry.ingest.rollups import ROLL_UP, TouchedHours, number_of_series

log = structlog.get_logger(__name__)

_SERIES_REWRITTEN_AFTER_MS = 3_600_000  # how old `last_seen` may become


class Ingester:
    """Runs in steps on one thread."""

    def __init__(
        self,
        reader: SpoolReader,
        store: Store,
        quarantine: Quarantine,
        *,
        max_decompressed_bytes: int,
        rollup_interval_ms: int,
        progress: Progress,
        max_records: int = 20_000,
        max_bytes: int = 16 << 20,
        max_known_series_bytes: int = 1 << 30,
        max_template_bytes: int = 128 << 20,
        limits: Limits = Limits(),
        client_budgets: ClientBudgets | None = None,
        suspect: Suspect | None = None,
        on_batch: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """A batch has at most `max_records` records or `max_bytes`, one record at least.

        `on_batch` is called with each batch before its records are decoded.
        """
        self._reader = reader
        self._store = store
        self._writer = TableWriter(store, progress)
        self._quarantine = quarantine
        self._progress = progress
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._suspect = suspect
        self._on_batch = on_batch
        self._known = KnownSeries(max_known_series_bytes, _SERIES_REWRITTEN_AFTER_MS)
        self._decoder = Decoder(
            max_decompressed_bytes=max_decompressed_bytes,
            limits=limits,
            known=self._known,
            max_template_bytes=max_template_bytes,
            client_budgets=client_budgets or ClientBudgets(),
        )
        if suspect is not None and suspect.has_narrowed:
            reader.release()
        self._hours = TouchedHours(reader.note.get("hours", ()), rollup_interval_ms)
        self._decoded: DecodedBatch | None = None  # retried while the store does not accept it
        self._unwritten: list[TableRows] = []
        self.oldest_record_ms = 0  # receive time of the oldest push that is not stored; 0 if unknown
        self.counts = Counts.of_note(reader.note)

    def recall_series(self, now_ms: int) -> None:
        """Reads which series the store has, before the first batch. Without them each is described again."""
        try:
            self._known.recall(recent_series(self._store, now_ms - _SERIES_REWRITTEN_AFTER_MS))
        except QueryError as exc:
            log.warning("cannot read the recent series, will describe all again", cause=str(exc))

    def step(self, now_ms: int) -> int:
        """Writes the next batch. Returns its number of records, 0 without one.

        After a TransientWriteError the next step retries the same batch with the same token.
        """
        try:
            decoded = self._decoded or self._next(now_ms)
            if decoded is None:
                self._progress.advance(Stage.IDLE)
                return 0
            self._reader.begin(decoded.batch)
            self._write(decoded, now_ms)
            self._commit(decoded)
        except OSError as exc:
            raise TransientWriteError(f"cannot follow the spool: {exc}") from exc
        return len(decoded.batch.records)

    def batches(self, clock_ms: Callable[[], int], *, everything: bool) -> Iterator[int]:
        """Writes what the spool holds now in batches, and yields the number of records of each.

        Unless `everything`, records that arrive meanwhile are left for the next call: written at once, they would be
        many batches of few records, and each batch costs ClickHouse as much as thousands of rows.
        Raises TransientWriteError, as `step`.
        """
        try:
            until = self._reader.totals.bytes + self._reader.buffered()[1]
        except OSError as exc:
            raise TransientWriteError(f"cannot follow the spool: {exc}") from exc
        while count := self.step(clock_ms()):
            yield count
            if self._reader.totals.bytes >= until and not everything:
                return

    def roll_up(self, clock_ms: Callable[[], int]) -> bool:
        """Computes the next slice of an hour that is due. Returns whether one was due; a failed one is retried later.

        `clock_ms` is wall time.
        """
        if not self._hours.is_due(began_ms := clock_ms()):
            return False
        self._progress.advance(Stage.WRITING)
        is_final = self._store.replicas_agree("points")  # else rows that others confirmed may still arrive
        try:
            part = self._hours.current or self._hours.begin(number_of_series(self._store))
            self._store.command(ROLL_UP, part.parameters())
        except (TransientWriteError, PermanentWriteError, QueryError) as exc:
            log.warning("cannot compute the rollup of an hour, will retry", cause=str(exc))
            self._hours.failed(clock_ms())
        else:
            self._hours.computed(max(0, clock_ms() - began_ms), clock_ms())
            if not is_final:
                self._hours.touch([part.hour], clock_ms())
        return True

    def as_dict(self) -> dict[str, Any]:
        """Counts for /metrics, in records. Raises OSError.

        The store confirmed `written`, this class counts `dropped`, the spool counts `buffered`. `replayed` records
        came from `headroom quarantine replay`, not from a network process.
        """
        counts = self.counts
        dropped = counts.dropped + Counter({DropReason.CORRUPT_RECORD: self._reader.totals.corrupt})
        buffered, buffered_bytes = self._reader.buffered()
        return {
            "written": counts.written.total(),
            "dropped": dropped.total(),
            "buffered": buffered,
            "buffered_bytes": buffered_bytes,
            "is_counted": self._reader.is_counted,  # otherwise `buffered` is an estimate
            "replayed": counts.replayed + self._reader.buffered(REPLAY_WRITER)[0],
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
            "oldest_record_ms": self.oldest_record_ms,
            "position_bytes": self._reader.totals.bytes,
        }

    def _next(self, now_ms: int) -> DecodedBatch | None:
        """The next batch of the spool, decoded. It ends where DecodedBatch is full. Raises OSError."""
        batch = self._reader.next_batch(self._max_records, self._max_bytes)
        if batch is None:
            return None
        if self._suspect is not None and not self._reader.has_begun:
            batch = self._suspect.cut(batch)
        self._on_batch(batch)
        self._known.begin(now_ms)
        self._quarantine.begin()
        decoded = DecodedBatch(batch, replayed=self._reader.has_begun)
        unseen = self._suspect is not None and self._suspect.is_culprit(batch)
        for number, (kind, body) in enumerate(batch.records, 1):
            self._take(decoded, kind, body, now_ms, unseen)
            self._progress.advance(Stage.DECODING)
            if decoded.is_full() and not self._reader.has_begun:
                decoded.batch = batch.first(number)
                break
        if decoded.outcomes:
            self.oldest_record_ms = min(outcome.push.received_at_ms for outcome in decoded.outcomes)
        self._decoded = decoded
        self._unwritten = list(decoded.tables(decoded.batch.token, now_ms))
        return decoded

    def _take(self, decoded: DecodedBatch, kind: RecordKind, body: bytes, now_ms: int, unseen: bool) -> None:
        """Decodes one record. `unseen`: drop it without decoding, because it killed the worker."""
        try:
            if kind is RecordKind.PUSH:
                self._take_push(decoded, decode_push(body), now_ms, unseen)
            elif unseen:
                decoded.dropped[DropReason.REFUSED] += 1
            else:
                decoded.add_record(kind, body)
        except (ValueError, TypeError) as exc:
            log.error("cannot read a spool record", kind=kind.name, nbytes=len(body), cause=repr(exc))
            decoded.dropped[DropReason.CORRUPT_RECORD] += 1

    def _take_push(self, decoded: DecodedBatch, push: Push, now_ms: int, unseen: bool) -> None:
        if unseen:
            refusal: Refusal | None = Refusal(DropReason.REFUSED, "the storage worker died repeatedly at this push")
            outcome = self._decoder.undecoded(push)
        else:
            outcome, refusal = self._decoder.outcome(push)
        decoded.add_push(outcome, refusal)
        self._known.add(identity(push), outcome.decoded.series, now_ms)
        if refusal is not None:
            self._quarantine.add(push, refusal)

    def _write(self, decoded: DecodedBatch, now_ms: int) -> None:
        """Writes the remaining tables. Raises TransientWriteError."""
        while self._unwritten:
            rows = decoded.without_refused(self._unwritten[0])
            written = self._writer.write(
                rows,
                decoded.batch.token,
                self._reader.isolated.get(rows.table, ()),
                partial(self._reader.isolate, rows.table),
                replayed=decoded.replayed,
            )
            del self._unwritten[0]
            for failed in written.failed:
                push = decoded.refuse(rows, failed.item)
                if push is not None:
                    self._quarantine.add(push, Refusal(DropReason.REFUSED, f"{rows.table}: {failed.cause}"))
            self._hours.touch(written.hours, now_ms)
            decoded.clamped_timestamps += written.clamped_timestamps

    def _commit(self, decoded: DecodedBatch) -> None:
        """Commits after all tables are written. After an OSError only the commit is retried."""
        counts = decoded.counts()
        if decoded.refused:
            self._known.forget()  # their series may not have been written
        counts.series_written = self._known.keep()
        if decoded.batch.writer == REPLAY_WRITER:
            counts.replayed = len(decoded.batch.records) + decoded.batch.corrupt
        counts += self.counts
        self._quarantine.flush(decoded.batch.token)
        self._reader.commit(decoded.batch, {**counts.as_note(), "hours": self._hours.as_list()})
        self.counts = counts
        self._decoded = None
        self.oldest_record_ms = 0
        self._progress.advance(Stage.IDLE)
