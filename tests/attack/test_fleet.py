"""A short run of the fleet: polite clients lose nothing while three hostile ones spend their budgets."""

from pathlib import Path

import pytest

from headroom.demo.broker import LocalCluster
from tests.attack.fleet import ATTACKS, besieged, gateway, line, losses, named

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.clickhouse]


def test_polite_fleet_loses_nothing(kafka: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(tmp_path, kafka.bootstrap) as served:
        fleet = besieged(served, seconds=20, polite=100)
        over_budget = served.metrics()["headroom_payer_refused_total:instances"]
        over, lost, is_missing = named(served), losses(fleet, served), fleet.is_missing()
        with capsys.disabled():
            print("", line(fleet, served)[0], over, sep="\n  ")
    assert lost == (0, 0, 0)
    assert not is_missing
    assert fleet.delays_s()
    assert [one.refused for one in fleet.polite] == [0] * 100
    assert over_budget == fleet.hostile[0].refused > 0
    assert over == dict(zip((address for _, address in ATTACKS), (["instances"], ["names"], ["names"]), strict=True))
