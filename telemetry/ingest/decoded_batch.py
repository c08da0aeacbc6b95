"""A decoded spool batch, and its rows in each table. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from exporters.model import ClientInstance, DropReason, Push, QuotaLimit, RecordKind, UsageSample
from exporters.spool.reader import Batch
from exporters.spool.records import decode_instance, decode_limits, decode_usage
from telemetry.decode.decoder import Outcome, Refusal
from telemetry.decode.otlp import Decoded
from telemetry.ingest import arrow_tables as tables
from telemetry.ingest.counts import Counts

# A batch ends with the record that reaches a limit: payloads may decompress to a thousand times their size.
_MAX_ROWS = 1_000_000  # one block and so one part in ClickHouse
_MAX_BYTES = 128 << 20  # of payloads decompressed, attributes as stored, buckets, and the sender's name in each row
_BUCKET_BYTES = 40  # a number in a Python list and in Arrow

_UNKNOWN_SERVER_ERROR = -1  # Kafka's code for a push that was acknowledged and cannot be stored


class Built(NamedTuple):
    """Rows of one table. `hours` and `clamped_timestamps` are those of points."""

    rows: pa.Table
    hours: Sequence[int] = ()
    clamped_timestamps: int = 0


class TableRows(NamedTuple):
    """The records with rows in `table`; `build` accepts any subset of `items`.

    An int item is the number of a push in the batch; others are decoded spool records.
    """

    table: str
    kind: RecordKind
    items: Sequence[Any]
    build: Callable[[Sequence[Any]], Built]


@dataclass(slots=True)
class DecodedBatch:
    """Decoded records of `batch`, in spool order."""

    batch: Batch
    replayed: bool = False  # an earlier process may have written it
    outcomes: list[Outcome] = field(default_factory=list)
    instances: list[ClientInstance] = field(default_factory=list)
    usage: list[list[UsageSample]] = field(default_factory=list)  # one list per record
    limits: list[list[QuotaLimit]] = field(default_factory=list)
    kept: Counter[RecordKind] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    refused: set[int] = field(default_factory=set)  # numbers of pushes that cannot be stored
    clamped_timestamps: int = 0  # of points decoded by template
    rows: int = 0
    nbytes: int = 0

    def add_push(self, outcome: Outcome, refusal: Refusal | None) -> None:
        """Adds a push. Every push has a row in `pushes`, stored or not."""
        self.outcomes.append(outcome)
        self.rows += 1 + outcome.points
        self.nbytes += outcome.uncompressed_bytes + outcome.decoded.text_bytes + _BUCKET_BYTES * outcome.decoded.buckets
        self.nbytes += outcome.points * (len(outcome.push.client_id) + len(outcome.push.connection.principal))
        if refusal is None:
            self.kept[RecordKind.PUSH] += 1
        else:
            self.dropped[refusal.reason] += 1

    def add_record(self, kind: RecordKind, body: bytes) -> None:
        """Adds a record of another kind. Raises ValueError, TypeError when it is invalid."""
        if kind is RecordKind.INSTANCE:
            self.instances.append(decode_instance(body))
            self.rows += 1
        elif kind is RecordKind.USAGE:
            self.usage.append(decode_usage(body))
            self.rows += len(self.usage[-1])
        else:
            self.limits.append(decode_limits(body))
            self.rows += len(self.limits[-1])
        self.kept[kind] += 1

    def is_full(self) -> bool:
        """Whether a limit is reached, so that the batch ends here."""
        return self.rows >= _MAX_ROWS or self.nbytes >= _MAX_BYTES

    def refuse(self, table_rows: TableRows, item: Any) -> Push | None:
        """Counts an item that the store does not accept as dropped. Returns the push if it was one."""
        is_push = isinstance(item, int)
        if is_push and item in self.refused:
            return None
        self.kept[RecordKind.PUSH if is_push else table_rows.kind] -= 1
        self.dropped[DropReason.REFUSED] += 1
        if not is_push:
            return None
        self.refused.add(item)
        outcome = self.outcomes[item]
        self.outcomes[item] = replace(outcome, error_code=_UNKNOWN_SERVER_ERROR, decoded=Decoded(), match=None)
        push: Push = outcome.push
        return push

    def without_refused(self, rows: TableRows) -> TableRows:
        """The rows of a table without pushes refused by an earlier table; `pushes` keeps a row for them."""
        if not self.refused or rows.table == "pushes":
            return rows
        return rows._replace(
            items=[item for item in rows.items if not (isinstance(item, int) and item in self.refused)]
        )

    def tables(self, token: str, now_ms: int) -> Iterator[TableRows]:
        """The rows of each table, in the order in which they are written."""
        # Series first, so that readers find the series of each point.
        push = RecordKind.PUSH
        yield TableRows("series", push, self._stored(), lambda n: Built(tables.series_table(self._outcomes(n))))
        yield TableRows("points", push, self._stored(), lambda n: Built(*tables.points_table(self._outcomes(n))))
        yield TableRows(
            "client_histograms", push, self._stored(), lambda n: Built(tables.histograms_table(self._outcomes(n)))
        )
        yield TableRows(
            "pushes", push, range(len(self.outcomes)), lambda n: Built(tables.pushes_table(n, self._outcomes(n), token))
        )
        yield TableRows("client_instances", RecordKind.INSTANCE, [*self._stored(), *self.instances], self._seen)
        yield TableRows(
            "quota_usage", RecordKind.USAGE, self.usage, lambda n: Built(tables.usage_table([*chain(*n)], now_ms))
        )
        yield TableRows(
            "quota_limits", RecordKind.LIMITS, self.limits, lambda n: Built(tables.limits_table([*chain(*n)], now_ms))
        )

    def counts(self) -> Counts:
        """The outcome of all records, after all tables are written."""
        counts = Counts(written=self.kept, dropped=self.dropped, clamped_timestamps=self.clamped_timestamps)
        for outcome in self.outcomes:
            counts.points_written += outcome.points
            counts.points_dropped += outcome.decoded.dropped
            counts.clamped_timestamps += outcome.decoded.clamped_timestamps
        return counts

    def _stored(self) -> list[int]:
        return [n for n, outcome in enumerate(self.outcomes) if outcome.error_code == 0]

    def _outcomes(self, numbers: Sequence[int]) -> list[Outcome]:
        return [self.outcomes[n] for n in numbers]

    def _seen(self, items: Sequence[Any]) -> Built:
        outcomes = self._outcomes([item for item in items if isinstance(item, int)])
        return Built(tables.instances_table(outcomes, [item for item in items if not isinstance(item, int)]))
