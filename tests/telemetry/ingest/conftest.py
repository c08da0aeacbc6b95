"""A spool, a store that keeps rows in memory, and an ingester over them."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from exporters.clickhouse.store import TransientWriteError
from exporters.model import QuotaLimit, RecordKind, StoredFacts, TopicSample
from exporters.spool.reader import SpoolReader
from exporters.spool.records import push_origin, push_record, sender_bytes
from exporters.spool.writer import SpoolWriter
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.kit.levels import sample
from tests.telemetry.decode.payloads import NOW_MS, PUSH, VECTORS

MIB = 1 << 20
JAVA = (VECTORS / "java-4.3.1-producer.zst").read_bytes()
USAGE = sample("prod", NOW_MS, 100.5, client_id="app-1", bytes=1000, requests=7)
LIMIT = QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", NOW_MS, None)
TOPIC = TopicSample("c", NOW_MS - NOW_MS % 60_000, 60_000, "alice", "app-1", "orders", "in", 300, 3, 0.01, "gw")
FACTS = StoredFacts("c", 1, NOW_MS, "4.3", 31, 1000, 11, 1000, "x.Y", 500, 8, 3, {"max.connections.per.ip": "15"})


def away(table: str) -> None:
    """The store does not answer."""
    raise TransientWriteError("away")


class FakeStore:
    """Keeps rows by table, and ignores a repeated token of a table. `fail` may raise before a write or a command."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.agree = True
        self.series = 0  # rows of series, if more than `rows` has
        self.tables: dict[str, dict[str, pa.Table]] = defaultdict(dict)
        self.fail: Callable[[str], None] = lambda table: None
        self.insert: Callable[..., None] = self.keep  # a test may insert a fault

    def keep(self, table: str, rows: pa.Table, *, token: str) -> None:
        self.fail(table)
        assert token.startswith(f"{table}:")
        assert rows.num_rows > 0
        self.tables[table].setdefault(token, rows)

    def replicas_agree(self, table: str) -> bool:
        return self.agree

    def holds(self, table: str, rows: pa.Table) -> bool:
        def identity(row: dict[str, Any]) -> tuple[Any, ...]:
            return row["client_id"], row["series_id"], row["ts"]

        return {identity(row) for row in rows.to_pylist()} <= {identity(row) for row in self.rows(table)}

    def command(self, sql: str, parameters: dict[str, Any]) -> None:
        self.fail("")
        self.commands.append(parameters)

    def query_arrow(self, sql: str, parameters: dict[str, Any]) -> pa.Table:
        self.fail("")
        assert "FROM pushes" in sql
        held = {str(UUID(bytes=row["push_id"])) for row in self.rows("pushes")}
        return pa.table({"id": pa.array([id_ for id_ in parameters["ids"] if id_ in held], pa.string())})

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table; of the query of the number of series its result."""
        if table == "SELECT count() AS found FROM series":
            return [{"found": self.series or len(self.rows("series"))}]
        return [row for rows in self.tables[table].values() for row in rows.to_pylist()]


class Bench:
    """A spool, a store and an ingester over them; `restart` is a crash of the worker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer = SpoolWriter(directory, "gw0", segment_bytes=MIB, max_bytes=64 * MIB)
        self.store = FakeStore()
        self.reader = SpoolReader(directory)
        self.ingester = self._ingester()

    def _ingester(self, **kwargs: Any) -> Ingester:
        quarantine = Quarantine(self.directory / "quarantine", 100, MIB)
        watched = {name: kwargs.pop(name) for name in ("suspect", "on_batch") if name in kwargs}
        options = IngestOptions(**{"max_decompressed_bytes": MIB, "rollup_interval_ms": 60_000, **kwargs})
        return Ingester(
            self.reader,
            self.store,  # type: ignore[arg-type] # a fake
            quarantine,
            options,
            Progress(time.monotonic),
            **watched,
        )

    def push(self, payload: bytes = JAVA, codec: int = 4, **fields: Any) -> None:
        push = replace(PUSH, payload=payload, compression_type=codec, **fields)
        sender = sender_bytes(push.connection, push.client_id)
        origin = push_origin(
            push.client_instance_id, push.subscription_id, push.terminating, push.compression_type, sender
        )
        self.writer.append(RecordKind.PUSH, push_record(push.received_at_ms, origin, push.payload))
        self.writer.flush()

    def append(self, kind: RecordKind, body: bytes) -> None:
        self.writer.append(kind, body)
        self.writer.flush()

    def step(self, now_ms: int = NOW_MS) -> int:
        return self.ingester.step(now_ms)

    def run(self) -> None:
        """Steps until nothing waits; a store that fails is tried again, and SystemExit is a kill and a new start."""
        while True:
            try:
                if not self.step():
                    return
            except TransientWriteError:
                continue
            except SystemExit:
                self.restart()

    def restart(self, **kwargs: Any) -> None:
        self.reader.close()
        self.reader = SpoolReader(self.directory)
        self.ingester = self._ingester(**kwargs)

    def balance(self) -> tuple[int, int, int]:
        """Written, dropped and buffered records; asserts that their sum equals the acknowledged ones."""
        counts = self.ingester.as_dict()
        assert counts["written"] + counts["dropped"] + counts["buffered"] == self.writer.records
        assert counts["dropped"] == sum(counts["drop_reasons"].values())
        return counts["written"], counts["dropped"], counts["buffered"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
