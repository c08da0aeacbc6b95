"""The URL of a job: validation, and which parts of it appear in messages."""

from __future__ import annotations

import pytest

from exporters.clickhouse.errors import StoreAwayError
from spark_jobs.clickhouse.source import clickhouse_of


def test_messages_hide_user_and_password() -> None:
    clickhouse = clickhouse_of("https://bob@127.0.0.1:1/headroom", "hunter3")
    assert "hunter" not in repr(clickhouse)
    with pytest.raises(StoreAwayError, match=r"^cannot reach https://127\.0\.0\.1:1: Connection refused$"):
        clickhouse.rows("SELECT 1 AS one")
    with pytest.raises(ValueError, match="must not contain a password") as refused:
        clickhouse_of("https://bob:hunter2@ch.example:8443/headroom")
    assert "hunter" not in str(refused.value)
