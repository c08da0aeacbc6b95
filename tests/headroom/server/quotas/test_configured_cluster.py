"""A broker with `quota.window.num=31`: what it allows is not critical."""

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served, eventually, levels_by_client, output_of, rows, running

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.spark]

CLUSTER = "configured"
LIMIT, BURST, EACH_S, RECORD_BYTES = 100_000.0, 1_200_000, 20.0, 100_000


@pytest.fixture
def served(
    java: str,
    kafka_libs: Path,
    jvm: Jvm,
    clickhouse: RunningClickHouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Served]:
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.writer.password)  # of the job, too
    with LocalCluster(java, kafka_libs, properties={"quota.window.num": "31"}) as kafka:
        with Admin(jvm, kafka.bootstrap) as admin:
            admin.create_topics(["bursts"])
            admin.alter_quota({"client-id": None}, {"producer_byte_rate": LIMIT})
        arguments = ["--upstream", kafka.bootstrap, "--cluster", CLUSTER, "--clickhouse", clickhouse.writer.url]
        with Served(tmp_path, *arguments) as found:
            yield found


def send(bootstrap: str, client_id: str, records: int, size: int, each_s: float, done: threading.Event) -> None:
    """`records` at once, each `each_s` seconds."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "compression.type": "none"})
    while True:
        for _ in range(records):
            producer.produce("bursts", bytes(size))
        producer.flush()
        if done.wait(each_s):
            return


def test_bursts_that_the_enlarged_window_allows_are_not_critical(served: Served, clickhouse: RunningClickHouse) -> None:
    sql = clickhouse.url.partition("//")[2]
    highest = f"""SELECT max(utilization_p95) FROM headroom.headroom_by_minute
                  WHERE cluster = '{CLUSTER}' AND client_id = 'bursty' AND quota_key = 'producer_byte_rate'"""
    bursts = partial(send, served.kafka, "bursty", BURST // RECORD_BYTES, RECORD_BYTES, EACH_S)
    with running(bursts, partial(send, served.kafka, "quiet", 1, 100, 1.0)):
        found = eventually(  # until a minute in which two bursts were in the broker's window
            lambda: levels_by_client(served.http, CLUSTER),
            lambda found: (found.get("bursty", {}).get("utilization_p95") or 0) > 0.7,
        )
        eventually(lambda: rows(sql, highest)[0][0] or 0, lambda share: share > 0.7)  # the job reads whole minutes
    shown = found["bursty"]
    assert shown["limit"] == LIMIT
    assert shown["throttle_ms"] == 0  # Kafka never throttles it
    assert shown["level"] in ("watch", "warn"), shown
    assert shown["utilization_p95"] <= 0.85, shown
    (throttled,) = rows(sql, f"SELECT max(throttle_ms) FROM headroom.quota_usage WHERE cluster = '{CLUSTER}'")
    assert throttled == (0,)
    job = ["--url", f"http://headroom_writer@{clickhouse.host}:{clickhouse.port}", "--cluster", CLUSTER]
    report = json.loads(output_of("job", "quota-headroom", *job, "--since", "2m", "--output", "json"))
    by_job = [row for row in report if row["quota_key"] == "producer_byte_rate"]
    levels = {row["level"] for row in by_job if row["client_id"] == "bursty"}
    assert levels & {"watch", "warn"} == levels - {"ok"} != set()
    credits = [row["burst_credit"] for row in by_job if row["client_id"] == "quiet"]
    assert credits == [pytest.approx(30 * LIMIT, rel=0.01)] * len(credits) != []
    # Of the client under a limit that is a little lower.
    asked = ["--client-defaults", "--add", f"producer_byte_rate={0.95 * LIMIT:.0f}", "--since", "2m"]
    where = ["--cluster", CLUSTER, "--url", clickhouse.url, "--output", "json"]
    answered = json.loads(output_of("quotas", "what-if", *asked, *where))
    assert [row["verdict"] for row in answered["clients"] if row["client_id"] == "bursty"] == ["unchanged"]
