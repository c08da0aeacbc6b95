"""`headroom verify-client` as a process, and what its report must say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headroom.demo.processes import start, stop
from tests.kafka_clients.conftest import PATIENCE_S

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
