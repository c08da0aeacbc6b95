"""A broker with `quota.window.num=31` and an ACL that denies an address: what it allows is not critical, and what the
gateway hides is said."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka import Producer
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from headroom.demo.kit.admin import Admin
from headroom.demo.kit.broker import LocalCluster
from headroom.demo.kit.jvm import Jvm
from quota_metrics.kafka.frames import decoded, encoded
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served, eventually, rows

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.spark, pytest.mark.alone]

CLUSTER = "configured"
PROPERTIES = {
    "quota.window.num": "31",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
LIMIT, BURST, EACH_S, RECORD_BYTES = 100_000.0, 1_200_000, 20.0, 100_000
DENIED, GUARDED = "127.0.0.9", "guarded"
TOPIC_AUTHORIZATION_FAILED = 29


class Configured(NamedTuple):
    kafka: LocalCluster
    served: Served
    store: RunningClickHouse


@pytest.fixture(scope="module")
def configured(
    java: str, kafka_libs: Path, jvm: Jvm, clickhouse: RunningClickHouse, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Configured]:
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setenv("HEADROOM_CLICKHOUSE_PASSWORD", clickhouse.server.password)
        kafka = stack.enter_context(LocalCluster(java, kafka_libs, properties=PROPERTIES))
        with Admin(jvm, kafka.bootstrap) as admin:
            admin.create_topics(["bursts", GUARDED])
            admin.alter_quota({"client-id": None}, {"producer_byte_rate": LIMIT})
        deny_address(jvm, kafka.bootstrap)
        store = f"http://headroom_writer@{clickhouse.host}:{clickhouse.port}/headroom"
        arguments = ["--upstream", kafka.bootstrap, "--cluster", CLUSTER, "--clickhouse", store]
        served = stack.enter_context(Served(tmp_path_factory.mktemp("configured"), *arguments))
        yield Configured(kafka, served, clickhouse)


def deny_address(jvm: Jvm, bootstrap: str) -> None:
    common = jvm.classes.org.apache.kafka.common
    topic = common.resource.ResourcePattern(
        common.resource.ResourceType.TOPIC, GUARDED, common.resource.PatternType.LITERAL
    )
    types = common.acl.AclPermissionType
    admin = jvm.admin(bootstrap)
    for host, permission in (("*", types.ALLOW), (DENIED, types.DENY)):
        rule = common.acl.AccessControlEntry("User:*", host, common.acl.AclOperation.ALL, permission)
        admin.createAcls([common.acl.AclBinding(topic, rule)]).all().get()
    admin.close()


def send(bootstrap: str, client_id: str, records: int, size: int, each_s: float, done: threading.Event) -> None:
    """`records` at once, each `each_s` seconds."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "compression.type": "none"})
    while True:
        for _ in range(records):
            producer.produce("bursts", bytes(size))
        producer.flush()
        if done.wait(each_s):
            return


def verdicts(http: str) -> dict[str, dict[str, Any]]:
    found = httpx.get(f"http://{http}/api/v1/headroom", params={"cluster": CLUSTER}, timeout=30).json()
    return {row["client_id"]: row for row in found if row["quota_key"] == "producer_byte_rate"}


def is_full(found: dict[str, dict[str, Any]]) -> bool:
    """A minute in which two bursts were in the broker's window."""
    return (found.get("bursty", {}).get("utilization_p95") or 0) > 0.7


def headroom(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "headroom", *arguments], capture_output=True, check=True, timeout=300)
    return done.stdout.decode()


def test_bursts_that_the_enlarged_window_allows_are_not_critical(configured: Configured) -> None:
    _, served, store = configured
    done = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(send, served.kafka, "bursty", BURST // RECORD_BYTES, RECORD_BYTES, EACH_S, done),
            pool.submit(send, served.kafka, "quiet", 1, 100, 1.0, done),
        ]
        try:
            found = eventually(lambda: verdicts(served.http), is_full)
        finally:
            done.set()
        for one in running:
            one.result()
    shown = found["bursty"]
    assert shown["limit"] == LIMIT
    assert shown["throttle_ms"] == 0  # Kafka never throttles it
    assert shown["level"] in ("watch", "warn"), shown
    assert shown["utilization_p95"] <= 0.85, shown
    (throttled,) = rows(
        store.url.partition("//")[2], f"SELECT max(throttle_ms) FROM headroom.quota_usage WHERE cluster = '{CLUSTER}'"
    )
    assert throttled == (0,)
    by_job = [row for row in json.loads(_job(store)) if row["quota_key"] == "producer_byte_rate"]
    levels = {row["level"] for row in by_job if row["client_id"] == "bursty"}
    assert levels & {"watch", "warn"} == levels - {"ok"} != set()
    credits = [row["burst_credit"] for row in by_job if row["client_id"] == "quiet"]
    assert credits == [pytest.approx(30 * LIMIT, rel=0.01)] * len(credits) != []
    assert _verdict_of_what_if(store) == "unchanged"
    assert _verdict_of_what_if(store, "--window-num", "11") == "newly throttled"


def _job(store: RunningClickHouse) -> str:
    url = f"http://headroom_writer@{store.host}:{store.port}"
    return headroom("job", "quota-headroom", "--url", url, "--cluster", CLUSTER, "--since", "2m", "--output", "json")


def _verdict_of_what_if(store: RunningClickHouse, *more: str) -> str:
    """Of the client under a limit that is a little lower."""
    asked = ["--client-defaults", "--add", f"producer_byte_rate={0.95 * LIMIT:.0f}", "--since", "2m", *more]
    where = ["--cluster", CLUSTER, "--url", store.url, "--output", "json"]
    found = json.loads(headroom("quotas", "what-if", *asked, *where))
    return next(str(row["verdict"]) for row in found["clients"] if row["client_id"] == "bursty")


def topic_error(address: str, source: str) -> int:
    """The error code of the guarded topic in the Metadata that a client at `source` gets."""
    asked = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(GUARDED)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    host, _, port = address.rpartition(":")
    frame = encoded(asked, 1, "guarded")
    with socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0)) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        with connection.makefile("rb") as answers:
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
    (topic,) = decoded(asked, answer).topics
    return int(topic.error_code)


def test_acl_of_an_address_that_the_gateway_hides_is_said(configured: Configured) -> None:
    kafka, served, _ = configured
    assert topic_error(kafka.bootstrap, DENIED) == TOPIC_AUTHORIZATION_FAILED
    assert topic_error(served.kafka, DENIED) == 0  # the broker sees the gateway's address, and Headroom says so:
    rule = f"DENY User:* from {DENIED} ALL TOPIC {GUARDED}"
    assert f"note an ACL names the address of a client: {rule}" in headroom(
        "gateway", "check", "--upstream", kafka.bootstrap
    )
    assert f"ACL: {rule}" in headroom("cluster", "show", "--http", served.http)
    remark = "1 ACLs name addresses of clients: brokers compare them with the gateway's"
    assert remark in httpx.get(f"http://{served.http}/status", timeout=30).text.replace("&#39;", "'")
    assert served.log.read_text().count(remark) == 1
