"""A hundred cases of the telemetry oracle; `make oracle` runs more."""

from __future__ import annotations

import pytest

from headroom.demo.jvm import Jvm
from tests.oracle.telemetry_oracle import run


@pytest.mark.java
def test_answers_match_kafka(jvm: Jvm) -> None:
    differences, deviations = run(jvm, seed=1, cases=100)
    assert differences == []
    assert deviations > 10
