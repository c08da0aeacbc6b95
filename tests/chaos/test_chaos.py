"""Short runs of `make chaos`: processes are killed, the store's disk fills up, the store refuses rows and hangs."""

import asyncio
import random
from pathlib import Path

import pytest

from headroom.demo.broker import LocalCluster
from tests.chaos.rare_faults import rare_faults
from tests.chaos.scenario import managed, subscribe
from tests.chaos.store_faults import store_faults

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.clickhouse]


@pytest.fixture
def upstream(kafka: LocalCluster) -> str:
    asyncio.run(subscribe(kafka.bootstrap))
    return kafka.bootstrap


def test_kills_lose_and_duplicate_no_acknowledged_point(upstream: str, tmp_path: Path) -> None:
    audit = asyncio.run(managed(upstream, tmp_path, random.Random(1), 3))
    assert audit.acknowledged > 100
    assert (audit.lost, audit.doubled, audit.faults) == (0, 0, [])


def test_store_faults_lose_and_duplicate_no_acknowledged_point(upstream: str, tmp_path: Path) -> None:
    audit = asyncio.run(store_faults(upstream, tmp_path, random.Random(1), 3))
    assert audit.acknowledged > 100
    assert set(audit.killed) == {"disk_full", "rows_refused", "server_stopped"}
    assert (audit.lost, audit.doubled, audit.faults) == (0, 0, [])


def test_rare_faults_lose_no_acknowledged_point_and_delay_no_client(upstream: str, tmp_path: Path) -> None:
    audit = asyncio.run(rare_faults(upstream, tmp_path, random.Random(1), 0.1))
    assert audit.acknowledged > 1_000
    assert (audit.lost, audit.doubled, audit.faults) == (0, 0, [])
