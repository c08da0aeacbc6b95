"""A Prometheus of this machine that scrapes a `headroom serve` and evaluates the rules of deploy/prometheus."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from headroom.demo.processes import LOOPBACK, complaint, free_ports, start, stop
from headroom.demo.service import DemoError, Service

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # to this machine, whatever the environment
_START_TIMEOUT_S = 30.0
_TIMEOUT_S = 10.0
_CONFIG = """
global: {{scrape_interval: 2s, evaluation_interval: 2s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: headroom, static_configs: [{{targets: ["{target}"]}}]}}]
"""


class Prometheus(Service):
    """`program` scrapes /metrics at `target`, HOST:PORT. `address` is its own."""

    def __init__(self, program: str, target: str, directory: Path) -> None:
        self.log = directory / "prometheus.log"
        self.address = ""
        self._program = program
        self._target = target
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers queries. Raises DemoError."""
        (port,) = free_ports(1)
        self.address = f"{LOOPBACK}:{port}"
        rules = self._directory / "headroom.rules.yml"
        rules.write_bytes((files("deploy") / "prometheus" / "headroom.rules.yml").read_bytes())
        config = self._directory / "prometheus.yml"
        config.write_text(_CONFIG.format(rules=rules.resolve(), target=self._target))
        argv = [self._program, f"--config.file={config}", f"--storage.tsdb.path={self._directory / 'prometheus'}"]
        with self.log.open("ab") as log:
            self._process = start([*argv, f"--web.listen-address={self.address}"], stderr=log)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise DemoError(f"Prometheus did not start: {complaint(self.log)}")
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
            self._process = None

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """The instant vector of now: labels and value. Raises DemoError."""
        try:
            answer = self._get(f"/api/v1/query?{urlencode({'query': promql})}")
            return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]
        except (OSError, HTTPException, ValueError, KeyError) as exc:
            raise DemoError(f"Prometheus does not answer {promql!r}: {exc}") from exc

    def _is_ready(self) -> bool:
        try:
            self._get("/api/v1/status/buildinfo")
        except (OSError, HTTPException, ValueError):
            return False
        return True

    def _get(self, path: str) -> Any:
        with DIRECT.open(f"http://{self.address}{path}", timeout=_TIMEOUT_S) as response:
            return json.loads(response.read())
