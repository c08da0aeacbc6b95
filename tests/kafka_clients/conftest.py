"""Shared by the tests of real clients: records to send, the telemetry that arrived, and `headroom verify-client`."""

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from headroom.demo.processes import start, stop
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


INTERVAL_MS = 1_000


class Verification:
    """`headroom verify-client` as a process: `bootstrap`, `wait_until_complete()`, and `verdicts()` at its end."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "verify.log"
        command = [sys.executable, "-m", "headroom", "verify-client", "--listen", "127.0.0.1:0", "--output", "json"]
        with self._log.open("wb") as log:
            self._process = start(
                [*command, "--interval", str(INTERVAL_MS), "--timeout", str(PATIENCE_S)],
                stderr=log,
                stdout=subprocess.PIPE,
            )
        self.bootstrap = self._line("ready kafka=")

    def wait_until_complete(self) -> None:
        self._line("complete")

    def verdicts(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit status and the report."""
        report, _ = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, json.loads(report)

    def close(self) -> None:
        stop(self._process)

    def _line(self, beginning: str) -> str:
        """The rest of the line that begins so, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self._log.read_text().splitlines():
                if line.startswith(beginning):
                    return line.removeprefix(beginning)
            time.sleep(0.05)
        raise AssertionError(self._log.read_text() + str(self._process.communicate()[0]))


def assert_passed(verification: Verification) -> None:
    status, verdicts = verification.verdicts()
    assert {each["rule"]: each["reason"] for each in verdicts if each["outcome"] != "pass"} == {}
    assert len(verdicts) > 15
    assert status == 0
