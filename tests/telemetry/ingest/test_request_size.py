"""A proxy before the store refuses large requests: batches are written in parts, each row once."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import structlog.testing

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.errors import StoreTooLargeError
from exporters.clickhouse.store import TooLargeWriteError, TransientWriteError
from exporters.model import RecordKind
from exporters.spool.records import encode_rows
from telemetry.ingest.ingester import Ingester, IngestOptions
from telemetry.ingest.progress import Progress
from telemetry.ingest.quarantine import Quarantine
from tests.kit.clickhouse import QueriedStore, RunningClickHouse
from tests.kit.platforms.proxies import http_proxy
from tests.telemetry.decode.payloads import NOW_MS
from tests.telemetry.ingest.conftest import MIB, USAGE, Bench

POINTS = 108  # of a push of the bench


@pytest.mark.parametrize("max_rows", [1, 50, 107, 108, 250, 700])
def test_batch_is_written_in_parts_that_the_proxy_lets_through(bench: Bench, max_rows: int) -> None:
    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        if rows.num_rows > max_rows:
            raise TooLargeWriteError("HTTP 413")
        bench.store.keep(name, rows, token=token)

    bench.store.insert = insert
    for n in range(7):
        bench.push(client_id=f"client-{n}")
    bench.append(RecordKind.USAGE, encode_rows(RecordKind.USAGE, [USAGE, USAGE._replace(user="bob")]))
    with structlog.testing.capture_logs() as logged:
        assert bench.step() == 8
    assert bench.balance() == (8, 0, 0)
    stored = Counter(row["client_id"] for row in bench.store.rows("points"))
    assert stored == {f"client-{n}": POINTS for n in range(7)}
    assert len(bench.store.rows("quota_usage")) == 2
    assert ["413" in entry["cause"] for entry in logged if entry["log_level"] == "warning"] == [True]


def test_row_that_passes_no_proxy_waits(bench: Bench) -> None:
    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        raise TooLargeWriteError("HTTP 413")

    bench.store.insert = insert
    bench.push()
    for _ in range(3):
        with pytest.raises(TransientWriteError, match="413"):
            bench.step()
    assert bench.balance() == (0, 0, 1)
    bench.store.insert = bench.store.keep
    assert bench.step() == 1
    assert len(bench.store.rows("points")) == POINTS


@pytest.mark.parametrize("seed", range(6))
def test_each_row_is_stored_once_while_the_limit_and_the_worker_change(bench: Bench, seed: int) -> None:
    draw = random.Random(seed)
    faults = [20]

    def fails() -> bool:
        faults[0] -= 1
        return faults[0] > 0 and draw.random() < 0.3

    def insert(name: str, rows: pa.Table, *, token: str) -> None:
        if fails():
            raise SystemExit  # stands for kill -9
        # several proxies with limits of their own
        if name == "points" and rows.num_rows > draw.choice([40, 300, 1_000_000]):
            raise TooLargeWriteError("HTTP 413")
        bench.store.keep(name, rows, token=token)
        if fails():
            raise TransientWriteError("away after it stored the rows")

    bench.store.insert = insert
    for n in range(9):
        bench.push(client_id=f"client-{n}")
    bench.run()
    assert Counter(row["client_id"] for row in bench.store.rows("points")) == {f"client-{n}": POINTS for n in range(9)}
    assert bench.balance() == (9, 0, 0)


@contextmanager
def limited(server: Endpoint, max_bytes: int, refused: list[int]) -> Iterator[Endpoint]:
    """The server behind a proxy that refuses larger requests."""
    with http_proxy(server, max_bytes=max_bytes, refused=refused) as url:
        yield replace(server, port=Endpoint.parse(url).port)


@pytest.mark.clickhouse
def test_each_push_is_stored_once_behind_a_proxy_with_a_small_limit(
    clickhouse: RunningClickHouse, tmp_path: Path
) -> None:
    bench, refused, pushes = Bench(tmp_path), list[int](), 60
    for n in range(pushes):
        bench.push(client_id="behind-a-proxy", client_instance_id=n.to_bytes(16))
    with limited(clickhouse.writer, 40_000, refused) as endpoint:
        store = QueriedStore(endpoint)
        options = IngestOptions(max_decompressed_bytes=MIB, rollup_interval_ms=60_000)
        ingester = Ingester(
            bench.reader, store, Quarantine(tmp_path / "q", 100, MIB), options, Progress(time.monotonic)
        )
        assert ingester.step(NOW_MS) == pushes
        stored = clickhouse.store.query(
            "SELECT count(), uniqExact(client_instance_id) FROM headroom.points WHERE client_id = 'behind-a-proxy'"
        )
        store.close()
    assert stored == [(POINTS * pushes, pushes)]
    assert min(refused) > 40_000
    assert ingester.as_dict()["dropped"] == 0


@pytest.mark.clickhouse
def test_refusal_of_a_size_names_the_proxy_and_is_not_asked_for_again(clickhouse: RunningClickHouse) -> None:
    refused = list[int]()
    rows = pa.table({"token": [f"{n:0100d}" for n in range(1_000)]})
    with limited(clickhouse.writer, 20_000, refused) as endpoint:
        client = ClickHouse((endpoint,))
        for _ in range(2):
            with pytest.raises(StoreTooLargeError, match=r"a proxy before http://127\.0\.0\.1:.* client_max_body_size"):
                client.insert("write_checks", rows, token="too-large", divide=False)
        client.insert("write_checks", rows.slice(0, 10), token="fits")
        client.close()
    assert len(refused) == 1


@pytest.mark.clickhouse
def test_rows_of_a_job_are_written_in_halves_and_count_once(clickhouse: RunningClickHouse) -> None:
    refused = list[int]()
    rows = pa.table({"token": [f"halved-{n:0100d}" for n in range(1_000)]})
    with limited(clickhouse.writer, 20_000, refused) as endpoint:
        for _ in range(2):
            client = ClickHouse((endpoint,))
            client.insert("write_checks", rows, token="halved")
            client.close()
    query = "SELECT count(), uniqExact(token) FROM headroom.write_checks WHERE startsWith(token, 'halved-')"
    assert clickhouse.store.query(query) == [(1_000, 1_000)]
    assert refused
