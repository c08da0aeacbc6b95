"""A short run of `make chaos` in which each process is killed and no point is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headroom.demo.kit.broker import Cluster
from tests.chaos.scenario import managed, subscribe

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse]


def test_nothing_acknowledged_is_lost_or_doubled(kafka: Cluster, tmp_path: Path) -> None:
    asyncio.run(subscribe(kafka.bootstrap))
    found = asyncio.run(managed(kafka.bootstrap, tmp_path, random.Random(1), 3))
    assert found.acknowledged > 1000
    assert (found.lost, found.doubled, found.faults) == (0, 0, [])
