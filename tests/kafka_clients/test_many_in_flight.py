"""A throttled producer with one record a request: the gateway stops reading at its limit, as a broker does."""

from __future__ import annotations

from pathlib import Path

import pytest

from headroom.demo.admin import Admin
from headroom.demo.broker import LocalCluster
from headroom.demo.serving import Serving
from tests.kafka_clients.many_in_flight import QUOTA, Sent, received, send

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

RECORDS = 20_000
CROWDED = 4_000  # twice what the gateway lets into its queue
AFTER = 8  # statistics; then the quota is lifted, so that the rest is sent soon


def test_throttled_producer_with_many_requests_in_flight_stays_connected(
    kafka: LocalCluster, kafka_admin: Admin, tmp_path: Path, name: str
) -> None:
    kafka_admin.create_topics([name])
    kafka_admin.alter_quota({"client-id": name}, {"producer_byte_rate": QUOTA})
    seen = 0

    def crowded(sent: Sent) -> None:
        nonlocal seen
        seen += sent.most_in_flight > CROWDED
        if seen == AFTER:
            kafka_admin.alter_quota({"client-id": name}, {"producer_byte_rate": None})

    with Serving(kafka.bootstrap, tmp_path) as serving:
        sent = send(serving.kafka, name, name, RECORDS, crowded)
    assert seen >= AFTER
    assert (sent.disconnects, sent.failed) == (0, 0)
    assert received(kafka.bootstrap, name, RECORDS) == list(range(RECORDS))
