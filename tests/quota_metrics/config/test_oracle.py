"""Our quota rules compared with Kafka's classes: 150 cases per subject; `make oracle` runs more."""

from __future__ import annotations

import pytest

from headroom.demo.jvm import Jvm
from tests.oracle.quotas_oracle import SUBJECTS


@pytest.mark.java
@pytest.mark.parametrize("subject", list(SUBJECTS))
def test_quota_rules_match_kafkas_classes(jvm: Jvm, subject: str) -> None:
    assert SUBJECTS[subject](jvm, 20_261_121, 150) == []
