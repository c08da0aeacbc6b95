"""What configures a client, read as Java's and Kafka's classes read it: 400 drawn texts each (`make oracle`: more)."""

from __future__ import annotations

import pytest

from headroom.demo.jvm import Jvm
from tests.oracle.client_files_oracle import SUBJECTS


@pytest.mark.java
@pytest.mark.parametrize("subject", list(SUBJECTS))
def test_texts_are_read_as_by_javas_classes(jvm: Jvm, subject: str) -> None:
    assert SUBJECTS[subject](jvm, 20_261_126, 400) == []
