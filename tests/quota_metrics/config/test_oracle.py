"""Our quota rules are Kafka's: some hundred cases of the oracle, more by `make oracle`."""

from __future__ import annotations

import pytest

from headroom.demo.kit.jvm import Jvm
from tests.oracle.quotas_oracle import SUBJECTS


@pytest.mark.java
@pytest.mark.parametrize("subject", list(SUBJECTS))
def test_no_difference_to_kafkas_own_classes(jvm: Jvm, subject: str) -> None:
    assert SUBJECTS[subject](jvm, 20_261_121, 150) == []
