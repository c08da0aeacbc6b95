"""The short reasons of the overview, and what a metric of a client is measured in."""

from __future__ import annotations

import pytest

from headroom.web.overview_rows import SHORT_CHARS, short_reason
from headroom.web.usage_chart import metric_unit

RULE = "producer_byte_rate 200.0 kB/s of user=web, client-id=<default>"
NEAR = f"at 99.0 % of {RULE}, 2.0 kB/s headroom"
MUTED = f"muted 10.4 s of 60 s on broker 1, throttle times up to 884 ms: wants more than {RULE}"


def short(reason: str) -> str:
    row = {"reason": reason, "quota_key": "producer_byte_rate", "matched_entity": "user=web, client-id=<default>"}
    return short_reason(row)


@pytest.mark.parametrize(
    ("reason", "beside"),
    [
        (f"{NEAR} on broker 1", "2.0 kB/s headroom"),
        (f"{NEAR} at the controller; bursts to 92.0 %", "2.0 kB/s headroom; bursts to 92.0 %"),
        (
            f"{NEAR} on broker 1; another client shares this quota, app takes 97 % of it",
            "app takes 97 % of this quota; 2.0 kB/s headroom",
        ),
        (MUTED, "wants more than its quota"),
        (
            f"{MUTED}; 2 other clients share this quota, this client takes 80 % of it",
            "this client takes 80 % of this quota; wants more than its quota",
        ),
        ("no quota applies", "no quota applies"),
        ("no quota was observed yet", "no quota was observed yet"),
    ],
)
def test_short_reason_says_what_the_columns_do_not(reason: str, beside: str) -> None:
    assert short(reason) == beside


@pytest.mark.parametrize("name", ["; ", " of user=web, ", "takes 100 % of it; another", "x" * 300])
def test_no_name_makes_a_reason_longer(name: str) -> None:
    found = short(f"{NEAR} on broker 1; another client shares this quota, {name} takes 97 % of it")
    assert 0 < len(found) <= SHORT_CHARS


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("request.latency.avg", "ms"),
        ("produce.throttle.time.max", "ms"),
        ("record.queue.time.avg", "ms"),
        ("io.wait.time.ns.avg", "ns"),
        ("outgoing.byte.rate", "B/s"),
        ("outgoing.byte.total", "B"),
        ("record.error.rate", "/s"),
        ("io.ratio", ""),
        ("record.send.total", ""),
    ],
)
def test_unit_of_a_metric(metric: str, unit: str) -> None:
    assert metric_unit(f"org.apache.kafka.producer.{metric}") == unit
