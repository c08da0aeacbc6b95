"""A throttled user: the broker's JMX, the tables and the report of the job name the same one."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headroom.demo.jvm import Admin, Jvm
from tests.kit.secure_cluster import SecureCluster
from tests.kit.secured_serve import librdkafka, rows, serving
from tests.kit.serving import PATIENCE_S, Served, eventually
from tests.quota_metrics.measure.quota_truth import Truth

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.release]

WINDOW_S = 60
MUTED = (
    "SELECT min(toUnixTimestamp(ts)), max(toUnixTimestamp(ts)), sum(muted_ms) FROM headroom.quota_usage"
    " WHERE user = 'carol'"
)


@pytest.fixture
def carols_quota(jvm: Jvm, secure_cluster: SecureCluster) -> None:
    """Set before Headroom starts: a later one is known at its next look only, and rows before that name no limit."""
    with Admin(jvm, secure_cluster.bootstrap("PLAINTEXT")) as admin:
        admin.alter_quota({"user": "carol"}, {"producer_byte_rate": 100_000.0})


@pytest.fixture
def one_process(carols_quota: None, tmp_path: Path, secure_cluster: SecureCluster) -> Iterator[Served]:
    with serving(tmp_path, secure_cluster) as served:
        yield served


@pytest.fixture
def truths(jvm: Jvm, secure_cluster: SecureCluster) -> Iterator[list[Truth]]:
    sensors = [Truth(jvm, port) for port in secure_cluster.jmx_ports]
    yield sensors
    for truth in sensors:
        truth.close()


@pytest.mark.spark
def test_throttled_user_has_the_same_name_in_jmx_tables_and_report(
    one_process: Served,
    truths: list[Truth],
    secure_cluster: SecureCluster,
    new_secure_topic: Callable[[str], str],
) -> None:
    topic, served = new_secure_topic("throttled"), one_process
    config = librdkafka(secure_cluster, "carol") | {"bootstrap.servers": served.kafka, "client.id": "too-much"}
    producer = Producer(config)
    throttled = (
        "SELECT DISTINCT user, bucket_user, bucket_client_id, matched_entity, `limit` FROM headroom.quota_usage"
        " WHERE quota_key = 'producer_byte_rate' AND client_id = 'too-much' AND throttle_ms > 0 AND limit_known"
    )
    telemetry = "SELECT DISTINCT principal FROM headroom.client_metrics WHERE client_id = 'too-much'"

    def asked(query: str) -> list[str]:
        """While it sends more than it may."""
        while len(producer) < 20:
            producer.produce(topic, bytes(10_000))
        producer.poll(0.2)
        return rows(served, query)

    assert eventually(lambda: asked(throttled), bool) == ["carol\tcarol\t\tuser=carol\t100000"]
    assert eventually(lambda: asked(telemetry), bool) == ["carol"]
    first, last, _ = eventually(lambda: asked(MUTED)[0].split("\t"), lambda row: int(row[2]) > 2_000)
    sensors = [sensor for truth in truths for sensor in truth.sensors().items()]
    names = {name for name, (_, throttle_ms) in sensors if name[1] == "carol" and throttle_ms > 0}
    assert names == {("producer_byte_rate", "carol", "")}
    producer.purge()
    rows_of_report = report(served, "carol", int(first), int(last))
    assert {(row["user"], row["client_id"]) for row in rows_of_report} == {("carol", "too-much")}
    assert "throttled" in {row["level"] for row in rows_of_report}


def report(served: Served, user: str, first_s: int, last_s: int) -> list[dict[str, Any]]:
    """`headroom job quota-headroom` over the windows from `first_s` to `last_s`."""
    since, until = first_s // WINDOW_S * WINDOW_S, (last_s // WINDOW_S + 1) * WINDOW_S
    argv = ["job", "quota-headroom", "--url", f"http://{served.sql}", "--window", str(WINDOW_S), "--output", "json"]
    argv += ["--from", str(since), "--to", str(until), "--user", user]
    job = subprocess.run([sys.executable, "-m", "headroom", *argv], capture_output=True, timeout=4 * PATIENCE_S)
    assert job.returncode == 0, job.stderr.decode()[-2000:]
    return [row for row in json.loads(job.stdout) if row["quota_key"] == "producer_byte_rate"]
