"""Short runs of `make chaos`: processes are killed, the store's disk fills up, the store refuses rows and hangs."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headroom.demo.broker import LocalCluster
from tests.chaos.rare_faults import rare_faults
from tests.chaos.scenario import managed, subscribe
from tests.chaos.store_faults import store_faults

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.clickhouse]


def test_kills_lose_and_duplicate_no_acknowledged_point(kafka: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(subscribe(kafka.bootstrap))
    found = asyncio.run(managed(kafka.bootstrap, tmp_path, random.Random(1), 3))
    assert found.acknowledged > 100
    assert (found.lost, found.doubled, found.faults) == (0, 0, [])


def test_store_faults_lose_and_duplicate_no_acknowledged_point(kafka: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(subscribe(kafka.bootstrap))
    found = asyncio.run(store_faults(kafka.bootstrap, tmp_path, random.Random(1), 3))
    assert found.acknowledged > 100
    assert set(found.killed) == {"disk_full", "rows_refused", "server_stopped"}
    assert (found.lost, found.doubled, found.faults) == (0, 0, [])


def test_rare_faults_lose_no_acknowledged_point_and_delay_no_client(kafka: LocalCluster, tmp_path: Path) -> None:
    asyncio.run(subscribe(kafka.bootstrap))
    found = asyncio.run(rare_faults(kafka.bootstrap, tmp_path, random.Random(1), 0.1))
    assert found.acknowledged > 1_000
    assert (found.lost, found.doubled, found.faults) == (0, 0, [])
