"""Shared by the tests of real clients: the records to send, and the telemetry that arrived."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headroom.demo.scenario import CLUSTER, Serving
from tests.kit.serving import eventually, rows

RECORDS = [b"%d-" % n + bytes(size) for n, size in enumerate([0, 1, 100, 1_000, 30_000, 300_000] * 5)]
PATIENCE_S = 120.0


@pytest.fixture
def name() -> str:
    """For topic, group and client ids: none of another test."""
    return f"through-{uuid.uuid4().hex[:8]}"


def pushed(serving: Serving, client_id: str) -> tuple[str, str, str, int]:
    """Software name, version, source address and number of metrics of a client, once its points are there."""
    query = """SELECT any(software_name), any(software_version), any(source_address), uniqExact(metric)
               FROM headroom.client_metrics WHERE cluster = {cluster:String} AND client_id = {client_id:String}"""
    row: tuple[str, str, str, int] = _once_logged(serving, client_id, query)
    return row


def topic_shares(serving: Serving, client_id: str, direction: str, least_bytes: int) -> dict[str, float]:
    """The share of each topic in the bytes of a client, once as many are stored: their minute is over."""
    query = f"""SELECT groupArray((topic, bytes)), sum(bytes) >= {least_bytes} FROM
                (SELECT topic, sum(bytes) AS bytes FROM headroom.topic_usage
                 WHERE cluster = {{cluster:String}} AND client_id = {{client_id:String}} AND direction = '{direction}'
                 GROUP BY topic)"""
    found = dict(_once_logged(serving, client_id, query)[0])
    return {topic: nbytes / sum(found.values()) for topic, nbytes in found.items()}


def assert_terminated(serving: Serving, client_id: str) -> None:
    """Waits for a client's terminating push."""
    query = """SELECT max(terminating) FROM headroom.pushes
               WHERE cluster = {cluster:String} AND client_id = {client_id:String}"""
    _once_logged(serving, client_id, query)


def _once_logged(serving: Serving, client_id: str, query: str) -> Any:
    """The only row, once its last column is not zero."""
    named = {"cluster": CLUSTER, "client_id": client_id}
    return eventually(lambda: rows(serving.sql, query, **named)[0], lambda row: bool(row[-1]), PATIENCE_S)
