"""Follows the spool and writes each batch of records to the store with its own deduplication token.

A record that cannot be decoded, or whose rows the store does not accept, is dropped alone and counted by reason; a
push is also quarantined. While the store accepts nothing (TransientWriteError), the same batch is retried with the
same token.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any
from uuid import UUID

import structlog

from exporters.clickhouse.errors import StoreError
from exporters.clickhouse.store import Built, PermanentWriteError, Store, TableRows, TableWriter, TransientWriteError
from exporters.model import ClientInstance, DropReason, Push, RecordKind
from exporters.spool.reader import Batch, SpoolReader
from exporters.spool.records import decode_instance, decode_push, decode_rows, is_heavy
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import DecodedPush, Decoder, Refusal
from telemetry.decode.otlp import Decoded
from telemetry.decode.series import ClientBudgets, KnownSeries, identity
from telemetry.ingest import arrow_tables as tables
from telemetry.ingest.progress import REPLAY_WRITER, Counts, Progress, Stage, Suspect
from telemetry.ingest.quarantine import Quarantine
from telemetry.ingest.recent_series import recent_series
from telemetry.ingest.rollups import ROLL_UP, TouchedHours, number_of_series

# A batch ends with the record that reaches a limit: payloads may decompress to a thousand times their size.
_MAX_ROWS = 1_000_000  # one block and so one part in ClickHouse
_MAX_BYTES = 128 << 20  # of payloads decompressed, attributes as stored, buckets, and the sender's name in each row
_BUCKET_BYTES = 40  # a number in a Python list and in Arrow

_UNKNOWN_SERVER_ERROR = -1  # Kafka's code for a push that was acknowledged and cannot be stored

log = structlog.get_logger(__name__)

# The records that become rows of one table, and what builds them of their rows and the time.
_ROWS: dict[RecordKind, tuple[str, Callable[[list[Any], int], Any]]] = {
    RecordKind.USAGE: ("quota_usage", tables.usage_table),
    RecordKind.LIMITS: ("quota_limits", tables.limits_table),
    RecordKind.FACTS: ("cluster_facts", tables.facts_table),
    RecordKind.TOPICS: ("topic_samples", tables.topics_table),
}


@dataclass(slots=True)
class DecodedBatch:
    """Decoded records of `batch`, in spool order."""

    batch: Batch
    replayed: bool = False  # an earlier process may have written it
    outcomes: list[DecodedPush] = field(default_factory=list)
    push_ids: list[bytes] = field(default_factory=list)  # of the outcomes
    stored: set[int] = field(default_factory=set)  # numbers of pushes that the store has already
    instances: list[ClientInstance] = field(default_factory=list)
    of_kind: dict[RecordKind, list[list[Any]]] = field(  # one list per record
        default_factory=lambda: {kind: [] for kind in _ROWS}
    )
    kept: Counter[RecordKind] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    refused: set[int] = field(default_factory=set)  # numbers of pushes that cannot be stored
    quarantined: list[tuple[Push, Refusal]] = field(default_factory=list)
    hours: set[int] = field(default_factory=set)  # of the written points
    clamped_timestamps: int = 0  # of points decoded by template
    rows: int = 0
    nbytes: int = 0

    def add_push(self, outcome: DecodedPush, refusal: Refusal | None, end: int) -> None:
        """Adds a push, whose record ends at this place. Every push has a row in `pushes`, stored or not."""
        self.outcomes.append(outcome)
        self.push_ids.append(tables.push_id(self.batch.segment, end))
        self.rows += 1 + outcome.points
        self.nbytes += outcome.uncompressed_bytes + outcome.decoded.text_bytes + _BUCKET_BYTES * outcome.decoded.buckets
        self.nbytes += outcome.points * (len(outcome.push.client_id) + len(outcome.push.connection.principal))
        if refusal is None:
            self.kept[RecordKind.PUSH] += 1
        else:
            self.dropped[refusal.reason] += 1
            self.quarantined.append((outcome.push, refusal))

    def add_record(self, kind: RecordKind, body: bytes) -> None:
        """Adds a record of another kind. Raises ValueError, TypeError when it is invalid."""
        if kind is RecordKind.INSTANCE:
            self.instances.append(decode_instance(body))
            self.rows += 1
        else:
            rows = decode_rows(kind, body)
            self.of_kind[kind].append(rows)
            self.rows += len(rows)
        self.kept[kind] += 1

    def refuse(self, rows: TableRows, item: Any, cause: str) -> None:
        """Drops an item that the store does not accept: a record, or a push, which is quarantined."""
        is_push = isinstance(item, int)
        if is_push and item in self.refused:
            return
        self.kept[RecordKind.PUSH if is_push else rows.kind] -= 1
        self.dropped[DropReason.REFUSED] += 1
        if is_push:
            self.refused.add(item)
            outcome = self.outcomes[item]
            self.outcomes[item] = replace(outcome, error_code=_UNKNOWN_SERVER_ERROR, decoded=Decoded(), match=None)
            self.quarantined.append((outcome.push, Refusal(DropReason.REFUSED, f"{rows.table}: {cause}")))

    def without_refused(self, rows: TableRows) -> TableRows:
        """The rows of a table without pushes refused by an earlier table; `pushes` keeps a row for them."""
        if not self.refused or rows.table == "pushes":
            return rows
        return rows._replace(
            items=[item for item in rows.items if not (isinstance(item, int) and item in self.refused)]
        )

    def tables(self, now_ms: int) -> Iterator[TableRows]:
        """The rows of each table, in the order in which they are written."""
        # Series first, so that readers find the series of each point. The points of a push in `pushes` are stored.
        push = RecordKind.PUSH
        yield TableRows("series", push, self._stored(), lambda n: Built(tables.series_table(self._outcomes(n))))
        yield TableRows("points", push, self._stored(), lambda n: Built(*tables.points_table(self._outcomes(n))))
        yield TableRows(
            "client_histograms", push, self._stored(), lambda n: Built(tables.histograms_table(self._outcomes(n)))
        )
        every = [n for n in range(len(self.outcomes)) if n not in self.stored]
        yield TableRows("pushes", push, every, self._build_pushes)
        seen = [*self._stored(), *self.instances]
        yield TableRows("client_instances", RecordKind.INSTANCE, seen, self._build_instances)
        for kind, (table, build) in _ROWS.items():
            build_rows = partial(lambda build, records: Built(build([*chain(*records)], now_ms)), build)
            yield TableRows(table, kind, self.of_kind[kind], build_rows)

    def counts(self) -> Counts:
        """The outcome of all records, after all tables are written."""
        counts = Counts(written=self.kept, dropped=self.dropped, clamped_timestamps=self.clamped_timestamps)
        for outcome in self.outcomes:
            counts.points_written += outcome.points
            counts.points_dropped += outcome.decoded.dropped
            counts.clamped_timestamps += outcome.decoded.clamped_timestamps
            counts.replaced_texts += outcome.has_replaced_texts
        return counts

    def _stored(self) -> list[int]:
        return [n for n, outcome in enumerate(self.outcomes) if outcome.error_code == 0 and n not in self.stored]

    def _outcomes(self, numbers: Sequence[int]) -> list[DecodedPush]:
        return [self.outcomes[n] for n in numbers]

    def _build_pushes(self, numbers: Sequence[int]) -> Built:
        return Built(tables.pushes_table([self.push_ids[n] for n in numbers], self._outcomes(numbers)))

    def _build_instances(self, items: Sequence[Any]) -> Built:
        outcomes = self._outcomes([item for item in items if isinstance(item, int)])
        return Built(tables.instances_table(outcomes, [item for item in items if not isinstance(item, int)]))


_HEAVY_DECODING_S = 1.0  # per batch of the clients that send most
_IDS_AT_ONCE = 2_000  # a query of 80 kB
_STORED_PUSHES = """
SELECT toString(push_id) AS id FROM pushes
WHERE received_at BETWEEN fromUnixTimestamp64Milli({first_ms:Int64}) AND fromUnixTimestamp64Milli({last_ms:Int64})
    AND push_id IN {ids:Array(UUID)}
"""
_SERIES_REWRITTEN_AFTER_MS = 3_600_000  # how old `last_seen` may become


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """A batch has at most `max_records` records or `max_bytes`, one record at least."""

    max_decompressed_bytes: int
    rollup_interval_ms: int
    max_records: int = 20_000
    max_bytes: int = 16 << 20
    max_known_series_bytes: int = 1 << 30
    max_template_bytes: int = 128 << 20
    limits: PayloadLimits = field(default_factory=PayloadLimits)
    max_client_points: int = 2_000_000  # in a minute
    max_client_series: int = 200_000


class Ingester:
    """Runs in steps on one thread."""

    def __init__(
        self,
        reader: SpoolReader,
        store: Store,
        quarantine: Quarantine,
        options: IngestOptions,
        progress: Progress,
        *,
        suspect: Suspect | None = None,
        on_batch: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """`on_batch` is called with each batch before its records are decoded."""
        self._reader = reader
        self._store = store
        self._writer = TableWriter(
            store, building=partial(progress.advance, Stage.DECODING), writing=partial(progress.advance, Stage.WRITING)
        )
        self._quarantine = quarantine
        self._progress = progress
        self._options = options
        self._suspect = suspect
        self._on_batch = on_batch
        self._known = KnownSeries(options.max_known_series_bytes, _SERIES_REWRITTEN_AFTER_MS)
        self._decoder = Decoder(
            max_decompressed_bytes=options.max_decompressed_bytes,
            limits=options.limits,
            known_series=self._known,
            max_template_bytes=options.max_template_bytes,
            client_budgets=ClientBudgets(options.max_client_points, options.max_client_series),
        )
        # After one death, the same batch with the same token nearly always succeeds; later, rows may be stored twice.
        if suspect is not None and suspect.deaths > 1:
            reader.release()
        self._hours = TouchedHours(reader.note.get("hours", ()), options.rollup_interval_ms)
        self._decoded: DecodedBatch | None = None  # retried while the store does not accept it
        self._unwritten: list[TableRows] = []
        self.counts = Counts.of_note(reader.note)

    def recall_series(self, now_ms: int) -> None:
        """Reads which series the store has, before the first batch. Without them each is described again."""
        try:
            self._known.recall(recent_series(self._store, now_ms - _SERIES_REWRITTEN_AFTER_MS))
        except StoreError as exc:
            log.warning("cannot read the recent series, will describe all again", cause=str(exc))

    def step(self, now_ms: int) -> int:
        """Writes the next batch. Returns its number of records, 0 without one.

        After a TransientWriteError the next step retries the same batch with the same token.
        """
        try:
            decoded = self._decoded or self._decode_next(now_ms)
            if decoded is None:
                self._progress.advance(Stage.IDLE)
                return 0
            self._reader.begin(decoded.batch)
            self._write_tables(decoded)
            self._commit(decoded, now_ms)
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
        """Computes the next slice of an hour if one is due, which it returns. One that fails is tried again later."""
        if not self._hours.is_due(clock_ms()):
            return False
        began_s = self._progress.clock_s()  # wall time may be set meanwhile
        self._progress.advance(Stage.WRITING)
        is_final = self._store.replicas_agree("points")  # else rows that others confirmed may still arrive
        try:
            part = self._hours.current or self._hours.begin(number_of_series(self._store))
            self._store.command(ROLL_UP, part.parameters())
        except (TransientWriteError, PermanentWriteError, StoreError) as exc:
            log.warning("cannot compute the rollup of an hour, will retry", cause=str(exc))
            self._hours.failed(clock_ms())
        else:
            self._hours.computed(int(1_000 * (self._progress.clock_s() - began_s)), clock_ms())
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
            "replaced_texts": counts.replaced_texts,
            "series_written": counts.series_written,
            "known_series": len(self._known),
            "templates": len(self._decoder.templates),
            "hours_to_roll_up": len(self._hours),
            "position_bytes": self._reader.totals.bytes,
        }

    def _decode_next(self, now_ms: int) -> DecodedBatch | None:
        """Reads and decodes the next batch of the spool. It ends where DecodedBatch is full. Raises OSError."""
        batch = self._reader.next_batch(self._options.max_records, self._options.max_bytes)
        if batch is None:
            return None
        suspect = self._suspect if self._suspect and self._suspect.covers(batch.segment, batch.start) else None
        if suspect is not None and not self._reader.has_begun:
            batch = batch.first(max(1, suspect.max_records))
        self._on_batch(batch)
        self._known.begin(now_ms)
        decoded = DecodedBatch(batch, replayed=self._reader.has_begun)
        # Others wait meanwhile. A range that was begun stays as it is.
        until_s = self._progress.clock_s() + _HEAVY_DECODING_S if is_heavy(batch.writer) else None
        # Its first record was tried alone, and the worker died of it.
        unseen = suspect is not None and suspect.max_records == 0
        for number, (kind, body) in enumerate(batch.records, 1):
            self._decode_record(decoded, kind, body, batch.start + batch.ends[number - 1][0], now_ms, unseen)
            self._progress.advance(Stage.DECODING)
            is_late = until_s is not None and self._progress.clock_s() >= until_s
            is_full = decoded.rows >= _MAX_ROWS or decoded.nbytes >= _MAX_BYTES
            if (is_full or is_late) and not self._reader.has_begun:
                decoded.batch = batch.first(number)
                break
        if batch.segment in self._reader.unsure:
            decoded.stored = self._find_stored(decoded)
        self._decoded = decoded
        self._unwritten = list(decoded.tables(now_ms))
        return decoded

    def _find_stored(self, decoded: DecodedBatch) -> set[int]:
        """The pushes of a batch that the store has; the position in its segment is lost. Raises TransientWriteError."""
        times = [outcome.push.received_at_ms for outcome in decoded.outcomes]
        stored: set[bytes] = set()
        try:
            for start in range(0, len(times), _IDS_AT_ONCE):
                ids = decoded.push_ids[start : start + _IDS_AT_ONCE]
                pushes = {"ids": [str(UUID(bytes=id_)) for id_ in ids], "first_ms": min(times), "last_ms": max(times)}
                stored_ids = self._store.query_arrow(_STORED_PUSHES, pushes)["id"].to_pylist()
                stored.update(UUID(text).bytes for text in stored_ids)
        except StoreError as exc:
            raise TransientWriteError(f"cannot ask the store which pushes it has: {exc}") from exc
        return {n for n, id_ in enumerate(decoded.push_ids) if id_ in stored}

    def _decode_record(
        self, decoded: DecodedBatch, kind: RecordKind, body: bytes, end: int, now_ms: int, unseen: bool
    ) -> None:
        """Decodes one record, which ends at this place. `unseen`: dropped undecoded, because it killed the worker."""
        try:
            if kind is not RecordKind.PUSH:
                if unseen:
                    decoded.dropped[DropReason.REFUSED] += 1
                else:
                    decoded.add_record(kind, body)
                return
            push = decode_push(body)
            if unseen:
                refusal: Refusal | None = Refusal(DropReason.REFUSED, "the storage worker died repeatedly at this push")
                outcome = DecodedPush(push, Decoded(), 0, _UNKNOWN_SERVER_ERROR)
            else:
                outcome, refusal = self._decoder.outcome(push)
            decoded.add_push(outcome, refusal, end)
            self._known.add(identity(push), outcome.decoded.series, now_ms)
        except (ValueError, TypeError) as exc:
            log.error("cannot read a spool record", kind=kind.name, nbytes=len(body), cause=repr(exc))
            decoded.dropped[DropReason.CORRUPT_RECORD] += 1

    def _write_tables(self, decoded: DecodedBatch) -> None:
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
                decoded.refuse(rows, failed.item, failed.cause)
            decoded.hours.update(written.hours)
            decoded.clamped_timestamps += written.clamped_timestamps

    def _commit(self, decoded: DecodedBatch, now_ms: int) -> None:
        """Commits after all tables are written. After an OSError only the commit is retried."""
        counts = decoded.counts()
        if decoded.refused:
            self._known.forget()  # their series may not have been written
        counts.series_written = self._known.keep()
        if decoded.batch.writer == REPLAY_WRITER:
            counts.replayed = len(decoded.batch.records) + decoded.batch.corrupt
        counts += self.counts
        self._hours.touch(decoded.hours, now_ms)
        if decoded.quarantined:
            self._quarantine.write(decoded.batch.token, decoded.quarantined)
        self._reader.commit(decoded.batch, {**counts.as_note(), "hours": self._hours.as_list()})
        self.counts = counts
        self._decoded = None
        self._progress.advance(Stage.IDLE)
