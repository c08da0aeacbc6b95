"""What the storage process asks of ClickHouse: the schema, durable inserts, and whether rows are there.

`TableWriter` writes the rows of a batch to one table, and isolates failing rows by bisection, so that the others are
stored.
"""

import contextlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import structlog

from exporters.clickhouse import schema
from exporters.clickhouse.client import ClickHouse, Row
from exporters.clickhouse.cluster import replicas_behind
from exporters.clickhouse.connection import ANY_DATABASE, Endpoint, StoreOptions
from exporters.clickhouse.errors import StoreError, StoreTooLargeError, StoreTooOldError, is_permanent, is_too_large
from exporters.clickhouse.migrate import SchemaError, apply_schema
from exporters.clickhouse.server_checks import refuse_cut_results, refuse_doubled_rows, refuse_several_servers
from exporters.model import RecordKind
from exporters.printable import one_line

_SINGLE = StoreOptions()
_CREATED = re.compile(r"CREATE (TABLE|VIEW) IF NOT EXISTS \{\{database\}\}\.(\w+)")
TIMEOUT_S = 300.0  # of a statement at one node
# What tells the rows of a table apart. The others count or replace: rows that come twice do little harm there.
_IDENTITIES = {
    "points": ("series_id", "ts"),
    "client_histograms": ("series_id", "ts"),
    "pushes": ("push_id", "received_at"),
}
_SAMPLE = 500


class WriteError(Exception):
    """Rows or a statement were not written. `code`: ClickHouse's error code, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class TransientWriteError(WriteError):
    """A retry may succeed: the store is unreachable, full, busy or misconfigured."""


class TooLargeWriteError(TransientWriteError):
    """An insert of this size needs too much memory, or something before the store refuses it; fewer rows may pass."""


class PermanentWriteError(WriteError):
    """A retry cannot succeed: types or values of the rows do not fit the table."""


class Store:
    """The ClickHouse server or cluster that the storage process writes to, from one thread. Connects at first use.

    `endpoints`: one server, or nodes of one cluster. After a failure the next attempt goes to the next node.
    """

    def __init__(self, *endpoints: Endpoint, options: StoreOptions = _SINGLE) -> None:
        self._options = options
        self._clickhouse = ClickHouse(
            endpoints, TIMEOUT_S, options.client_settings(), compression=options.compression, consistent=True
        )

    def migrate(self, values: Mapping[str, object] = MappingProxyType({})) -> None:
        """Applies missing migrations. `values`: what the templates of the schema name beside the database.

        Raises TransientWriteError, also for a server or database that cannot be used as it is, PermanentWriteError.
        """
        nodes = tuple(replace(node, database=ANY_DATABASE) for node in self._clickhouse.nodes)
        anywhere = replace(self._clickhouse, nodes=nodes)  # the database may not exist yet
        with self._write_errors("cannot apply the schema"), contextlib.closing(anywhere):
            refuse_several_servers(self._clickhouse, self._options.cluster)
            try:
                apply_schema(anywhere, self._options, self._clickhouse.database, values)
            except (SchemaError, schema.ChangedMigrationError) as exc:
                raise TransientWriteError(str(exc)) from exc

    def check(self) -> None:
        """Verifies that rows are stored, once, and that a result that breaks off is an error.

        Raises TransientWriteError, PermanentWriteError.
        """
        with self._write_errors("cannot use this store"):
            refuse_doubled_rows(self._clickhouse, "write_checks")
            refuse_cut_results(self._clickhouse)

    def check_reading(self, values: Mapping[str, object] = MappingProxyType({})) -> None:
        """Queries each table and view once, as pages and jobs will. `values` as for `migrate`.

        A view breaks when somebody changes a table below it by hand, and on a server of another release. The queries
        read no row: ClickHouse resolves the columns of a view and of all below it, and runs nothing.
        Raises TransientWriteError, which names the one that cannot be read.
        """
        all_statements = (statement for migration in schema.migrations(values) for statement in migration.statements)
        created = [match.groups() for match in map(_CREATED.match, all_statements) if match]
        tables = [name for kind, name in created if kind == "TABLE"]
        queries = {"the tables": " UNION ALL ".join(f"SELECT 1 FROM {name} LIMIT 0" for name in tables)}  # noqa: S608
        queries |= {f"view {name}": f"SELECT * FROM {name} LIMIT 0" for kind, name in created if kind == "VIEW"}  # noqa: S608
        for what, query in queries.items():
            try:
                self.rows(query)
            except StoreError as exc:
                raise TransientWriteError(f"cannot read {what}: {exc}") from exc

    def insert(self, table: str, rows: pa.Table, *, token: str) -> None:
        """Writes rows as ClickHouse.insert does, as a whole. Raises TransientWriteError and PermanentWriteError."""
        name = f"{self._clickhouse.database}.{table}"
        with self._write_errors(f"cannot write {rows.num_rows} rows to {name}"):
            self._clickhouse.insert(table, rows, token=token, divide=False)

    def holds(self, table: str, rows: pa.Table) -> bool:
        """Whether the table has all of these rows, by a sample of them; False if its rows have no identity.

        Raises TransientWriteError.
        """
        columns = _IDENTITIES.get(table)
        if columns is None or rows.num_rows == 0:
            return False
        sample = rows.select(columns).take(pa.array(range(0, rows.num_rows, -(-rows.num_rows // _SAMPLE))))
        ids, times = ([_literal(value) for value in column.to_pylist()] for column in sample.columns)
        wanted = {f"({id_}, {time})" for id_, time in zip(ids, times, strict=True)}
        identity = ", ".join(columns)
        partitions = f"{columns[1]} BETWEEN {min(times)} AND {max(times)}"
        sql = (
            f"SELECT uniqExact({identity}) AS stored FROM {table}"  # noqa: S608 numbers, times and UUIDs
            f" WHERE {partitions} AND ({identity}) IN ({', '.join(sorted(wanted))})"
        )
        try:
            (row,) = self.rows(sql)
        except StoreError as exc:
            raise TransientWriteError(f"cannot look up rows of {table}: {exc}") from exc
        return bool(row["stored"] == len(wanted))

    def command(self, sql: str, parameters: Mapping[str, Any]) -> None:
        """Runs a statement without rows. Raises TransientWriteError, PermanentWriteError."""
        with self._write_errors("cannot run a statement"):
            self._clickhouse.command(sql, parameters)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Sequence[Row]:
        """All rows of a small result. Raises StoreError."""
        with self._query_errors():
            return self._clickhouse.rows(sql, parameters or {})

    def query_arrow(self, sql: str, parameters: Mapping[str, Any]) -> pa.Table:
        """A result of many rows, as columns. Raises StoreError."""
        with self._query_errors():
            return self._clickhouse.table(sql, parameters)

    def replicas_agree(self, table: str) -> bool:
        """Whether every replica is reachable and has all rows of a table that were confirmed before this call."""
        if not self._options.cluster:
            return True
        asked = replicas_behind(self._options.cluster, table)
        try:
            (row,) = self.rows(asked, {"database": self._clickhouse.database})
        except StoreError:
            return False
        return not row["behind"]

    def close(self) -> None:
        self._clickhouse.close()

    @contextlib.contextmanager
    def _query_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self._clickhouse.use_next_node()
            raise

    @contextlib.contextmanager
    def _write_errors(self, failure: str) -> Iterator[None]:
        try:
            yield
        except StoreTooOldError as exc:
            self._clickhouse.use_next_node()
            raise TransientWriteError(str(exc)) from exc
        except StoreTooLargeError as exc:
            raise TooLargeWriteError(f"{failure}: {exc}") from exc
        except StoreError as exc:
            self._clickhouse.use_next_node()
            kind: type[WriteError] = TransientWriteError
            if is_permanent(exc.code, str(exc)):
                kind = PermanentWriteError
            elif is_too_large(exc.code, str(exc)):
                kind = TooLargeWriteError
            raise kind(f"{failure}: {exc}", exc.code) from exc


def _literal(value: Any) -> str:
    """A number, a UUID or a time."""
    if isinstance(value, bytes):
        return f"'{uuid.UUID(bytes=value)}'"
    return str(value) if isinstance(value, int) else f"'{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}'"


log = structlog.get_logger(__name__)

_ATTEMPTS = 2  # attempts with the whole batch before bisection
# After this many isolated items without an accepted one, the rest is dropped at once: a quarantine file each, but no
# insert.
_MAX_ISOLATED = 64
_REFUSED_BEFORE = "refused before the storage worker was started again"


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
    is_row: bool = False  # whether the items are numbers of rows


class Failed(NamedTuple):
    """An item (see TableRows) that cannot be written."""

    item: Any
    cause: str


class WrittenTable:
    """The outcome, so far, of the items of one table of one batch."""

    def __init__(self, isolated: set[int], save: Callable[[int], None], *, replayed: bool) -> None:
        self.isolated = isolated  # as SpoolReader.isolate numbers them
        self.failed: list[Failed] = []
        self.accepted = False
        self.hours: set[int] = set()
        self.clamped_timestamps = 0
        self.replayed = replayed
        self._save = save

    def isolate(self, piece: int) -> None:
        self._save(piece)
        self.isolated.add(piece)


class TableWriter:
    """The token of each insert consists of table, batch and path of the bisection, so that repeats are deduplicated."""

    def __init__(self, store: Store, *, building: Callable[[], None], writing: Callable[[], None]) -> None:
        """`building` and `writing` are called as rows begin to be built, and to be written."""
        self._store = store
        self._building = building
        self._writing = writing
        self._built: tuple[str, Built] | None = None  # the whole batch, while the store does not accept it
        self._sent: set[str] = set()  # tokens under which the store may have rows of this table
        self._causes: dict[int, str] = {}  # why pieces of the table that is being written were refused
        self._logged: set[str] = set()  # tables whose refusal was logged
        self._has_logged_size = False

    def write(
        self,
        rows: TableRows,
        token: str,
        isolated: Iterable[int],
        isolate: Callable[[int], None],
        *,
        replayed: bool = False,
    ) -> WrittenTable:
        """After a TransientWriteError or a crash, the same call continues and writes nothing twice.

        `isolate` saves which pieces were divided or refused (SpoolReader.isolate), before anything depends on it, and
        may raise OSError; `isolated` is what it saved. A divided piece is never written as a whole again, even if the
        store would accept it by now: one of its halves may be stored already, under a token of its own.
        `replayed`: an earlier process may have written the batch, in whole or in part.
        """
        outcome = WrittenTable(set(isolated), isolate, replayed=replayed)
        self._write_piece(rows, rows.items, f"{rows.table}:{token}", 1, outcome)
        self._built = None
        self._causes.clear()
        self._sent.clear()
        return outcome

    def _write_piece(
        self, rows: TableRows, items: Sequence[Any], token: str, number: int, outcome: WrittenTable
    ) -> None:
        if -number in outcome.isolated:
            outcome.failed += [Failed(item, self._causes.get(number, _REFUSED_BEFORE)) for item in items]
            return
        if number not in outcome.isolated:
            try:
                cause = self._attempt(rows, items, token, number, outcome)
            except TooLargeWriteError as exc:
                if not self._has_logged_size:
                    self._has_logged_size = True
                    smaller = "writes smaller batches, each of which costs the store as much as a large one"
                    log.warning(smaller, cause=str(exc))
                if len(items) == 1 and rows.build(items).rows.num_rows == 1:
                    raise
            else:
                if cause is None:
                    return
                if len(items) <= 1 or (not outcome.accepted and len(outcome.failed) >= _MAX_ISOLATED):
                    self._causes[number] = cause
                    outcome.isolate(-number)
                    outcome.failed += [Failed(item, cause) for item in items]
                    return
            outcome.isolate(number)
        if len(items) == 1 and not rows.is_row:
            self._write_rows(rows, items, token, number, outcome)
            return
        middle = len(items) // 2
        for half, part in enumerate((items[:middle], items[middle:])):
            self._write_piece(rows, part, f"{token}/{half}", 2 * number + half, outcome)

    def _write_rows(
        self, rows: TableRows, items: Sequence[Any], token: str, number: int, outcome: WrittenTable
    ) -> None:
        """Writes one item, whose rows are too many for one insert, in halves of its rows."""
        built, before = rows.build(items), len(outcome.failed)

        def part(numbers: Sequence[int]) -> Built:
            return Built(built.rows.slice(numbers[0], len(numbers)), built.hours)

        numbers = range(built.rows.num_rows)
        self._write_piece(TableRows(rows.table, rows.kind, numbers, part, True), numbers, token, number, outcome)
        if failed := outcome.failed[before:]:
            outcome.failed[before:] = [Failed(items[0], failed[0].cause)]
        outcome.clamped_timestamps += built.clamped_timestamps

    def _attempt(
        self, rows: TableRows, items: Sequence[Any], token: str, number: int, outcome: WrittenTable
    ) -> str | None:
        """The whole batch is attempted _ATTEMPTS times. Returns why the piece was refused, or None."""
        whole = number == 1
        for _ in range(_ATTEMPTS if whole else 1):
            cause = self._insert(rows, items, token, outcome, keep=whole)
            if cause is None:
                return None
        if whole and rows.table not in self._logged:
            self._logged.add(rows.table)
            log.error("rows cannot be written, isolating them", table=rows.table, records=len(rows.items), cause=cause)
        return cause

    def _insert(
        self, rows: TableRows, items: Sequence[Any], token: str, outcome: WrittenTable, *, keep: bool = False
    ) -> str | None:
        """Writes these items; returns why they cannot be written, or None. Raises TransientWriteError."""
        try:
            if self._built is not None and self._built[0] == token:
                built = self._built[1]
            else:
                self._building()
                built = rows.build(items)
            if keep:
                self._built = (token, built)
            self._writing()
            if built.rows.num_rows:
                self._store.insert(rows.table, built.rows, token=token)
                outcome.accepted = True
                self._sent.add(token)
        except (PermanentWriteError, TooLargeWriteError) as exc:
            # Refused now, but an earlier attempt may have stored it: its halves would double it.
            if not (outcome.replayed or token in self._sent) or not self._store.holds(rows.table, built.rows):
                if isinstance(exc, TooLargeWriteError):
                    raise
                return one_line(exc)
            outcome.accepted = True
        except TransientWriteError:
            self._sent.add(token)
            raise
        except Exception as exc:  # noqa: BLE001 - an internal error is isolated as a refusal of the store is
            return one_line(exc)
        finally:
            self._building()
        outcome.hours.update(built.hours)
        outcome.clamped_timestamps += built.clamped_timestamps
        return None
