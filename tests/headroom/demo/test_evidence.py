"""When the demo reports that the observed results match its script, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from headroom.demo.evidence import ByteRates, faults
from headroom.demo.kit.jmx import Sensor
from headroom.demo.script import CLIENTS

Row = dict[str, Any]


def report() -> list[Row]:
    return [
        {
            "client_id": client.client_id,
            "quota_key": str(client.quota_key),
            "level": client.script.level,
            "limit": client.limit,
            "usage": 1000.0,
            "reason": "because",
        }
        for client in CLIENTS
    ]


def broker(rate: float = 1000.0) -> ByteRates:
    rates = ByteRates()
    for sample in (rate - 10, rate + 10):
        rates.add({(client.quota_key, client.client_id): Sensor(sample, float("nan")) for client in CLIENTS})
    return rates


def found() -> dict[str, list[Row]]:
    rows: list[Row] = [{"client_id": client.client_id} for client in CLIENTS]
    return {"points": rows, "throttle_samples": rows}


def test_matching_results_report_no_faults() -> None:
    compared = broker().compare(report())
    assert len(compared) == 8
    assert {row["difference"] for row in compared} == {0.0}
    assert faults(report(), compared, found()) == []


def test_wrong_level_wrong_limit_and_missing_client_are_reported() -> None:
    rows = report()
    rows[0]["level"] = "critical"
    rows[1]["limit"] = 7.0
    gone = rows.pop(2)
    assert gone["client_id"] == "java-producer-throttled"
    assert faults(rows, broker().compare(report()), found()) == [
        "java-producer-idle is critical, not ok (because)",
        "java-producer-warn has the limit 7.0, not 200000.0",
        "java-producer-throttled is missing",
    ]


@pytest.mark.parametrize(("rate", "count"), [(960.0, 0), (1040.0, 0), (900.0, 8), (1100.0, 8)])
def test_usage_must_be_close_to_the_brokers_rate(rate: float, count: int) -> None:
    assert len(faults(report(), broker(rate).compare(report()), found())) == count


def test_missing_broker_rate_is_reported() -> None:
    said = faults(report(), ByteRates().compare(report()), found())
    assert len(said) == 8
    assert "java-producer-warn has no byte-rate at the broker or in the report" in said


def test_missing_rows_in_clickhouse_are_reported() -> None:
    nothing: dict[str, list[Row]] = {"points": [], "throttle_samples": []}
    said = faults(report(), broker().compare(report()), nothing)
    assert said[:2] == ["no telemetry of the java clients arrived", "no telemetry of the librdkafka clients arrived"]
    assert said[2] == "no throttling of java-producer-throttled was seen on the wire"
    assert len(said) == 6
