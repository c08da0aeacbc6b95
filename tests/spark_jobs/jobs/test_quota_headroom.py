"""The job end to end: from ClickHouse through Spark to ClickHouse."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from exporters.clickhouse.errors import StoreError
from exporters.model import CONTROLLER, QuotaLimit
from spark_jobs.cli import app
from spark_jobs.jobs import quota_headroom
from spark_jobs.options import HeadroomOptions
from spark_jobs.time_range import TimeRange
from telemetry.ingest.arrow_tables import limits_table
from tests.kit.clickhouse import RunningClickHouse, connected
from tests.kit.points import TIME, points
from tests.kit.terminal.pseudo_terminal import shown_by
from tests.kit.usage_rows import FRIDAY_MS, insert_usage

pytestmark = [pytest.mark.spark, pytest.mark.clickhouse]

# Three windows of a minute.
WHEN = TimeRange(FRIDAY_MS, FRIDAY_MS + 180_000, 60)
FROM = datetime.fromtimestamp(FRIDAY_MS / 1000, UTC)


def run(url: str, when: TimeRange = WHEN, **options: Any) -> list[dict[str, Any]]:
    return quota_headroom.run(HeadroomOptions(url, when, **{"cluster": "c", **options})).rows


class Client(NamedTuple):
    client_id: str
    quota_key: str
    rate: float
    throttle_ms: float
    windows: int = 3
    throttled_windows: int = 3


PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
CLIENTS = [
    Client("idle", PRODUCE, 100.0, 0.0),
    Client("warn", PRODUCE, 85_000.0, 0.0),
    Client("throttled", PRODUCE, 101_000.0, 800.0),
    Client("throttled-consumer", FETCH, 99_000.0, 900.0),
    Client("free", FETCH, 5_000_000.0, 0.0),
    Client("gone", PRODUCE, 70_000.0, 0.0, windows=1),
    Client("new", PRODUCE, 97_000.0, 0.0, windows=-1),
    Client("calm-again", FETCH, 10.0, 700.0, throttled_windows=1),
]


@pytest.fixture(scope="module")
def url(clickhouse: RunningClickHouse) -> str:
    """Of the usage of each client every five seconds as written by the gateway, duplicated as after a crash."""
    usage = [(client, at_s) for client in CLIENTS for at_s in range(0, 180, 5) if active(client, at_s)]
    throttle_ms = [client.throttle_ms if at_s < client.throttled_windows * 60 else 0.0 for client, at_s in usage]
    for _ in ("first", "replay"):
        insert_usage(
            clickhouse.store,
            "c",
            [WHEN.from_ms + at_s * 1000 for _, at_s in usage],
            [client.rate for client, _ in usage],
            user="ANONYMOUS",
            client_id=[client.client_id for client, _ in usage],
            quota_key=[client.quota_key for client, _ in usage],
            bytes=[int(client.rate * 5) for client, _ in usage],
            throttle_ms=throttle_ms,
            throttled_requests=[int(ms > 0) for ms in throttle_ms],
        )
    before = WHEN.from_ms - 60_000
    limits = [
        QuotaLimit("c", "", "<default>", "", PRODUCE, before, 1000.0),
        QuotaLimit("c", "ANONYMOUS", "<default>", "", PRODUCE, before, 50_000.0),
        QuotaLimit("c", "ANONYMOUS", "<default>", "", PRODUCE, WHEN.from_ms - 30_000, 100_000.0),
        QuotaLimit("c", "", "throttled-consumer", "", FETCH, before, 100_000.0),
        QuotaLimit("c", "", "free", "", FETCH, before, 1.0),
        QuotaLimit("c", "", "free", "", FETCH, before + 1, None),
    ]
    clickhouse.store.insert("quota_limits", limits_table(limits, before), token="limits")
    name = "org.apache.kafka.producer.produce.throttle.time.max"
    values = [(1, 750.0), (2, float("nan")), (125, 640.0), (126, float("nan"))]
    columns: dict[str, Any] = {"client_id": ["throttled"] * len(values), "metric": [name] * len(values)}
    columns |= {"ts": pa.array([WHEN.from_ms + at_s * 1000 for at_s, _ in values], TIME)}
    table = points("c", len(values), value=[ms for _, ms in values], **columns)
    clickhouse.store.insert("points", table, token="points")
    clickhouse.store.query(
        "INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,"
        " software_version, first_seen, last_seen, pushes, points) SELECT 'c', generateUUIDv4(), 'throttled',"
        " 'ANONYMOUS', 'java', '4.3.1', fromUnixTimestamp64Milli({ms:Int64}) AS at, at, 1, 4",
        {"ms": WHEN.from_ms - 500},
    )
    return clickhouse.url


def active(client: Client, at_s: int) -> bool:
    return at_s >= 120 if client.windows < 0 else at_s < client.windows * 60


def test_levels_are_reported_and_reproducible(spark: SparkSession, url: str, clickhouse: RunningClickHouse) -> None:
    rows = run(url)
    reported = {row["client_id"]: (row["level"], row["limit"], row["window_start"].minute) for row in rows}
    assert reported == {
        "throttled-consumer": ("throttled", 100_000.0, 2),
        "throttled": ("throttled", 100_000.0, 2),
        "warn": ("warn", 100_000.0, 2),
        "gone": ("watch", 100_000.0, 0),
        "new": ("critical", 100_000.0, 2),
        "idle": ("ok", 100_000.0, 2),
        "free": ("ok", None, 2),
        "calm-again": ("ok", None, 2),
    }
    assert [row["level"] for row in rows] == ["throttled"] * 2 + ["critical", "warn", "watch"] + ["ok"] * 3
    in_range = {row["client_id"]: (row["range_throttle_ms"], row["last_throttled"]) for row in rows}
    assert in_range["calm-again"] == (700.0, FROM)
    assert in_range["throttled"] == (800.0, FROM + timedelta(minutes=2))
    assert in_range["warn"] == (0.0, None)
    throttled = next(row for row in rows if row["client_id"] == "throttled")
    expected = {
        "user": "ANONYMOUS",
        "broker_id": 1,
        "usage": 101_000.0,
        "utilization": 1.01,
        "throttle_ms": 800.0,
        "software_name": "java",
        "software_version": "4.3.1",
        "instances": 1,
        "client_throttle_ms_max": 640.0,
        "matched_entity": "user=ANONYMOUS, client-id=<default>",
        "window_start": FROM + timedelta(minutes=2),
    }
    assert expected.items() <= throttled.items()
    assert run(url, top=3) == rows[:3]

    # Both runs wrote the same windows: each window counts once, in the version of the last run.
    counts = "SELECT count(), uniqExact(run_id), sum(level = 'throttled') FROM headroom.quota_utilization FINAL"
    assert clickhouse.store.query(counts.replace("FINAL", "FINAL WHERE cluster = 'c' AND window_s = 60")) == [
        (20, 1, 7)
    ]
    written = (
        "SELECT level, usage, `limit`, reason FROM headroom.quota_utilization_committed"
        " WHERE client_id = 'throttled' AND cluster = 'c' AND window_s = 60"
    )
    assert clickhouse.store.query(f"{written} ORDER BY window_start DESC LIMIT 1") == [
        (
            *("throttled", 101_000.0, 100_000.0),
            "muted 9.6 s of 60 s on broker 1, throttle times up to 800 ms: wants more than producer_byte_rate"
            " 100.0 kB/s of user=ANONYMOUS, client-id=<default>",
        )
    ]
    # A replayed row may be counted twice until the server merges the duplicate.
    runs = (
        "SELECT status, rows_in IN (240, 480), rows_out, window_to, error, stats FROM headroom.job_runs FINAL"
        f" WHERE window_from = '{FROM:%F %T}' ORDER BY run_version DESC LIMIT 2"
    )
    last = FROM.replace(tzinfo=None) + timedelta(seconds=180)
    levels = {"throttled": 2.0, "critical": 1.0, "warn": 1.0, "watch": 1.0, "ok": 3.0}
    assert clickhouse.store.query(runs) == [("succeeded", 1, 20, last, "", levels)] * 2


def test_an_incomplete_window_is_reported_of_clients_without_a_complete_one(
    spark: SparkSession, url: str, clickhouse: RunningClickHouse
) -> None:
    rows = run(url, TimeRange(WHEN.from_ms, WHEN.to_ms, 120))
    reported = {row["client_id"]: (row["window_start"].minute, row["complete"]) for row in rows}
    assert reported == {client.client_id: (0, 1) for client in CLIENTS} | {"new": (2, 0)}
    muted = "SELECT reason FROM headroom.quota_utilization_committed WHERE client_id = 'throttled' AND window_s = 120"
    (whole, half) = clickhouse.store.query(f"{muted} ORDER BY window_start")
    assert (whole[0].split(" on ")[0], half[0].split(" on ")[0]) == ("muted 19.2 s of 120 s", "muted 9.6 s of 60 s")


def test_addresses_and_the_controller_have_levels_too(
    spark: SparkSession, url: str, clickhouse: RunningClickHouse
) -> None:
    """Rows as the gateway writes them: of an address without a user, of mutations at the broker -1."""
    address: dict[str, Any] = {"quota_key": "connection_creation_rate", "ip": "192.0.2.7"}
    mutations: dict[str, Any] = {"quota_key": "controller_mutation_rate", "user": "ANONYMOUS", "broker_id": CONTROLLER}
    for name, rate, columns in (("192.0.2.7", 9.0, address), ("deployer", 7.0, mutations)):
        columns |= {"client_id": name, "bucket_client_id": name, "interval_ms": 5_000, "limit": 10.0, "limit_known": 1}
        insert_usage(clickhouse.store, "further", range(WHEN.from_ms, WHEN.from_ms + 120_000, 5_000), rate, **columns)
    rows = run(url, TimeRange(WHEN.from_ms, WHEN.from_ms + 120_000, 60), cluster="further")
    assert [(row["client_id"], row["level"], row["utilization"], row["limit"]) for row in rows] == [
        ("192.0.2.7", "warn", 0.9, 10.0),
        ("deployer", "watch", 0.7, 10.0),
    ]
    assert [row["reason"] for row in rows] == [
        "at 90.0 % of connection_creation_rate 10.0 connections/s, 1.0 connections/s headroom on broker 1",
        "at 70.0 % of controller_mutation_rate 10.0 mutations/s, 3.0 mutations/s headroom at the controller",
    ]


def test_failed_worker_query_is_raised_and_recorded(
    spark: SparkSession, url: str, clickhouse: RunningClickHouse
) -> None:
    with away("headroom.quota_limits", clickhouse), pytest.raises(StoreError, match=r"quota_limits") as failed:
        run(url)
    assert "\n" not in str(failed.value)
    failures = clickhouse.store.query("SELECT error FROM headroom.job_runs FINAL WHERE status = 'failed'")
    assert (f"StoreError: {failed.value}",) in failures


@contextmanager
def away(name: str, clickhouse: RunningClickHouse) -> Iterator[None]:
    with connected(clickhouse.writer) as client:
        client.command(f"RENAME TABLE {name} TO {name}_away")
        try:
            yield
        finally:
            client.command(f"RENAME TABLE {name}_away TO {name}")


BETWEEN = ["--cluster", "c", "--from", f"{FROM:%FT%TZ}", "--to", f"{FROM + timedelta(seconds=180):%FT%TZ}"]


def test_command_line_outputs_and_exit_codes(spark: SparkSession, url: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["quota-headroom", "--url", url, *BETWEEN])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "wants more than producer_byte_rate 100.0 kB/s of user=ANONYMOUS, client-id=<default>" in shown.stdout
    path = tmp_path / "headroom.parquet"
    asked = ["quota-headroom", "--url", url, *BETWEEN, "--output", "parquet", "--path", str(path)]
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, done.stdout) == (0, "")
    assert len(pq.read_table(path)) == len(CLIENTS)
    few = ["quota-headroom", "--url", url, *BETWEEN, "--output", "json", "--client-id", "warn", "--fail-on"]
    failing = CliRunner().invoke(app, [*few, "warn"])
    assert [row["client_id"] for row in json.loads(failing.stdout)] == ["warn"]
    assert failing.exit_code == 4
    empty = CliRunner().invoke(app, ["quota-headroom", "--url", url, "--from", "60", "--to", "120"])
    assert (empty.exit_code, empty.stderr) == (3, "headroom: there is no usage of source gateway in this time\n")


def test_job_runs_by_spark_submit(url: str, tmp_path: Path) -> None:
    """As in an activated virtual environment: PySpark's own scripts take the `python3` of PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"} | {"PATH": path}
    frugal = ["--driver-java-options", "-XX:TieredStopAtLevel=1"]
    asked = ["spark-submit", *frugal, quota_headroom.__file__, "--url", url, *BETWEEN, "--output", "json", "--top", "4"]
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, timeout=500, check=True)
    reported = [(row["client_id"], row["level"]) for row in json.loads(done.stdout)]
    assert [level for _, level in reported] == ["throttled", "throttled", "critical", "warn"]
    assert reported[2:] == [("new", "critical"), ("warn", "warn")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.release
def test_table_fits_a_terminal_of_80_columns(url: str) -> None:
    code, lines = shown_by(["job", "quota-headroom", "--url", url, *BETWEEN, "--cluster", "c"], 80, 24)
    assert (code, all(len(line) <= 80 for line in lines)) == (0, True)
    (heading,) = [at for at, line in enumerate(lines) if line.startswith("level ")]
    table_of = {line.split()[1]: line for line in lines[heading + 1 : heading + 1 + len(CLIENTS)]}
    assert set(table_of) == {client.client_id for client in CLIENTS}
    assert ("85.0 %" in table_of["warn"], "100.0 kB/s" in table_of["warn"]) == (True, True)
    assert any(line.startswith("throttled throttled-consumer: muted") for line in lines[heading:])
