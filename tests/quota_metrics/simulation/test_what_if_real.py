"""What-if against reality: a recorded load is evaluated under other quotas and then run again under them.

Throttled seconds are the same thing in all three places: the union of the
throttle times in the responses that the gateway saw, until the end of the load.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.demo.admin import Admin
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Jvm
from headroom.demo.serving import Serving
from tests.kit.paced_load import Load, Paced, Reported
from tests.kit.serving import eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.alone]

SECONDS = 60
GENEROUS = {"producer_byte_rate": 10_000_000.0, "consumer_byte_rate": 10_000_000.0}
CHANGED = {"producer_byte_rate": 75_000.0, "consumer_byte_rate": 50_000.0}
EVERYONE = {"client-id": None}

LOAD = Load(
    librdkafka=[
        Paced("what-if-feed", "what-if-fed", ((SECONDS, 65_000),)),  # below its quota, above that of its reader
        Paced("what-if-over", "what-if-any", ((SECONDS, 105_000),)),
        Paced("what-if-burst", "what-if-any", ((20, 120_000), (SECONDS - 20, 35_000))),
        Paced("what-if-under", "what-if-under", ((SECONDS, 35_000),)),
    ],
    java=[
        Paced("what-if-java-over", "what-if-any", ((SECONDS, 95_000),)),
        Paced("what-if-java-under", "what-if-any", ((SECONDS, 30_000),)),
    ],
    consumers=[("what-if-slow-reader", "what-if-fed"), ("what-if-reader", "what-if-under")],
)
THROTTLED = {"what-if-over", "what-if-burst", "what-if-java-over", "what-if-slow-reader"}
NOT_THROTTLED = {"what-if-feed", "what-if-under", "what-if-java-under", "what-if-reader"}


@dataclass(frozen=True)
class Run:
    """One time that the load ran."""

    begin_s: int
    end_s: int
    reported: Reported

    def asked(self, sql: str, change: str) -> dict[str, dict[str, Any]]:
        """What `headroom quotas what-if` says of the clients in it, by client id."""
        when = ["--from", str(self.begin_s), "--to", str(self.end_s)]
        command = ["quotas", "what-if", "--client-defaults", *change.split(), *when, "--output", "json"]
        result = CliRunner().invoke(app, [*command, "--url", f"http://{sql}"])
        assert result.exit_code == 0, result.output
        rows = [row for row in json.loads(result.stdout)["clients"] if row["client_id"] in THROTTLED | NOT_THROTTLED]
        assert len(rows) == len(THROTTLED | NOT_THROTTLED)
        return {row["client_id"]: row for row in rows}


@pytest.fixture(scope="module")
def runs(
    kafka: LocalCluster, kafka_admin: Admin, jvm: Jvm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Run, Run, str]]:
    """The load under generous quotas and under changed ones, and where the recording is."""
    kafka_admin.create_topics(["what-if-fed", "what-if-any", "what-if-under"])
    serving = Serving(kafka.bootstrap, tmp_path_factory.mktemp("what-if"))
    try:
        kafka_admin.alter_quota(EVERYONE, GENEROUS)
        serving.start()
        recorded = Run(*LOAD.run(jvm, serving.kafka, "recorded"))
        kafka_admin.alter_quota(EVERYONE, CHANGED)
        time.sleep(11)  # the broker's windows are empty then, as they were before
        real = Run(*LOAD.run(jvm, serving.kafka, "real"))
        # Rows of a client go on for the ten seconds of its window, so newer ones come.
        newest = "SELECT toUnixTimestamp(max(ts)) FROM headroom.quota_usage"
        eventually(lambda: rows(serving.sql, newest)[0][0], lambda stored_s: stored_s > real.end_s + 1)
        yield recorded, real, serving.sql
    finally:
        kafka_admin.alter_quota(EVERYONE, dict.fromkeys(GENEROUS))
        serving.stop()


def change(values: dict[str, float]) -> str:
    return "--add " + ",".join(f"{key}={value:.0f}" for key, value in values.items())


def test_predicted_throttling_matches_the_real_run(runs: tuple[Run, Run, str]) -> None:
    recorded, real, sql = runs
    predicted, truth = recorded.asked(sql, change(CHANGED)), real.asked(sql, change(CHANGED))
    compared = {
        client_id: (row["after"]["throttled_s"], truth[client_id]["before"]["throttled_s"])
        for client_id, row in predicted.items()
    }
    print(
        *(f"what-if {name} predicted={was:.1f} real={is_:.1f} unit=s" for name, (was, is_) in compared.items()),
        sep="\n",
    )
    assert {client_id for client_id, row in predicted.items() if row["verdict"] == "newly throttled"} == THROTTLED
    assert {client_id for client_id, (_, seconds) in compared.items() if seconds} == THROTTLED
    assert {client_id for client_id, row in predicted.items() if row["verdict"] == "unchanged"} == NOT_THROTTLED
    for client_id in THROTTLED:
        predicted_s, real_s = compared[client_id]
        assert predicted_s == pytest.approx(real_s, rel=0.2), compared
        assert predicted[client_id]["before"] == {
            "limit": 10_000_000.0,
            "entity": {"client-id": None},
            "throttled_s": 0,
            "throttle_ms_max": 0,
        }


def test_throttled_seconds_match_client_reports(runs: tuple[Run, Run, str]) -> None:
    _, real, sql = runs
    truth = real.asked(sql, change(CHANGED))
    for client_id in ("what-if-over", "what-if-burst", "what-if-slow-reader"):
        reported_s = real.reported.throttled_s(client_id, real.end_s)
        assert truth[client_id]["before"]["throttled_s"] == pytest.approx(reported_s, rel=0.1)


def test_removing_the_limit_is_predicted_to_free_all_clients(runs: tuple[Run, Run, str]) -> None:
    """The throttled run evaluated under generous quotas and under none: the first run shows that all are freed."""
    _, real, sql = runs
    for other in (change(GENEROUS), "--delete producer_byte_rate,consumer_byte_rate"):
        answer = real.asked(sql, other)
        assert {client_id for client_id, row in answer.items() if row["verdict"] == "freed"} == THROTTLED
        assert {client_id for client_id, row in answer.items() if row["verdict"] == "unchanged"} == NOT_THROTTLED
