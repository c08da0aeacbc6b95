"""A push that the store or the worker cannot process is isolated; the rest of its batch is stored once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from exporters.clickhouse.store import PermanentWriteError, TransientWriteError
from exporters.model import DropReason, RecordKind
from exporters.spool.reader import Batch
from exporters.spool.records import encode_rows
from telemetry.ingest.progress import Suspect, suspect_after
from telemetry.ingest.quarantine import held
from tests.telemetry.ingest.bench import JAVA, USAGE, Bench

BAD = "bad-client"


def refuse(bench: Bench, table: str, is_bad: Callable[[dict[str, Any]], bool], error: type[Exception]) -> list[int]:
    """The store refuses inserts into a table that hold a bad row. Returns the sizes of those it accepted."""
    accepted: list[int] = []
    keep = bench.store.keep

    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        if name == table and any(map(is_bad, rows.to_pylist())):
            raise error("a row is bad")
        if name == table:
            accepted.append(rows.num_rows)
        keep(name, rows, token=token)

    bench.store.insert = insert
    return accepted


def is_bad(row: dict[str, Any]) -> bool:
    return bool(row["client_id"] == BAD)


@pytest.mark.parametrize("seed", range(4))
def test_each_push_is_stored_once_or_quarantined_under_random_faults(bench: Bench, seed: int) -> None:
    """Random faults: rows refused by some inserts only, the store unavailable before or after one, killed workers."""
    draw, real = random.Random(seed), bench.store.insert
    faults = [10 + draw.randrange(20)]
    refused = {f"client-{n}" for n in draw.sample(range(12), 4)}

    def maybe(fault: BaseException) -> None:
        if faults[0] > 0 and draw.random() < 0.15:
            faults[0] -= 1
            raise fault

    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        maybe(TransientWriteError("away"))
        maybe(SystemExit())  # stands for kill -9
        if name == "points" and draw.random() < 0.7 and refused & {row["client_id"] for row in rows.to_pylist()}:
            raise PermanentWriteError("a row is bad")
        real(name, rows, token=token)
        maybe(TransientWriteError("away after it stored the rows"))
        maybe(SystemExit())

    bench.store.insert = insert
    for n in range(12):
        bench.push(client_id=f"client-{n}")
    bench.run()
    stored = Counter(row["client_id"] for row in bench.store.rows("points"))
    quarantined = [push.facts["client_id"] for push in held(bench.directory / "quarantine")]
    assert set(stored.values()) == {108}
    assert set(quarantined) <= refused
    assert sorted([*stored, *quarantined]) == sorted(f"client-{n}" for n in range(12))
    assert bench.balance() == (12 - len(quarantined), len(quarantined), 0)


@pytest.mark.parametrize("table", ["series", "points", "pushes", "client_instances"])
@pytest.mark.parametrize("error", [PermanentWriteError, ValueError, MemoryError])
def test_bad_push_is_quarantined_and_others_are_stored(bench: Bench, table: str, error: type[Exception]) -> None:
    refuse(bench, table, is_bad, error)
    for n in range(9):
        bench.push(client_id=BAD if n == 4 else f"good-{n}")
    bench.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE]))
    assert bench.step() == 10
    assert bench.balance() == (9, 1, 0)
    assert bench.ingester.counts.dropped == {DropReason.REFUSED: 1}
    assert {row["client_id"] for row in bench.store.rows("points")} >= {f"good-{n}" for n in range(9) if n != 4}
    assert len([row for row in bench.store.rows("points") if row["client_id"] != BAD]) == 8 * 108
    [push] = held(bench.directory / "quarantine")
    assert (push.facts["client_id"], push.facts["reason"]) == (BAD, "refused")
    assert push.facts["cause"] == f"{table}: a row is bad"
    assert push.push().payload == JAVA
    if table != "pushes":
        codes = {push["client_id"]: push["error_code"] for push in bench.store.rows("pushes")}
        assert codes == {f"good-{n}": 0 for n in range(9) if n != 4} | {BAD: 0 if table == "client_instances" else -1}


def test_single_failure_quarantines_nothing(bench: Bench) -> None:
    failures = iter([PermanentWriteError("once")])

    def fail(table: str) -> None:
        if table == "points" and (failure := next(failures, None)):
            raise failure

    bench.store.fail = fail
    bench.push()
    bench.push(client_id="app-2")
    assert bench.step() == 2
    assert bench.balance() == (2, 0, 0)
    assert len(bench.store.tables["points"]) == 1


def test_rejecting_table_causes_a_bounded_number_of_inserts(bench: Bench) -> None:
    tried = 0

    def fail(table: str) -> None:
        nonlocal tried
        if table == "quota_usage":
            tried += 1
            raise PermanentWriteError("no")

    bench.store.fail = fail
    for _ in range(1_000):
        bench.writer.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE]))
    bench.writer.flush()
    assert bench.step() == 1_000
    assert tried < 200
    assert bench.balance() == (0, 1_000, 0)


def test_range_that_kills_the_worker_is_halved_until_quarantined(bench: Bench) -> None:
    suspect: Suspect | None = None
    ranges: list[Batch] = []
    for n in range(40):
        bench.push(client_id=BAD if n == 17 else f"d-{n:02}")

    deaths = 0
    while True:
        bench.restart(suspect=suspect, max_records=32, on_batch=ranges.append)
        decode = bench.ingester._decoder.outcome

        def outcome(push: Any, decode: Any = decode) -> Any:
            if push.client_id == BAD:
                raise SystemExit  # stands for kill -9, or a crash of a library
            return decode(push)

        bench.ingester._decoder.outcome = outcome  # type: ignore[method-assign]
        try:
            while bench.step():
                pass
            break
        except SystemExit:
            deaths += 1
            last = ranges[-1]
            suspect = suspect_after(suspect, last.segment, last.start, last.end, 32)
    assert deaths == 3  # 32, 2, 1 records: then it is quarantined without being decoded
    assert bench.balance() == (39, 1, 0)
    [push] = held(bench.directory / "quarantine")
    assert (push.facts["client_id"], push.facts["reason"]) == (BAD, "refused")
    assert len(bench.store.rows("points")) == 39 * 108
