"""deploy/ci: the workflows match GitHub's schema, and their steps do what they say with a real broker and client."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from headroom.cli.main import app
from headroom.demo.broker import LocalCluster
from headroom.demo.processes import free_ports
from quota_metrics.config.entities import entity_of
from quota_metrics.config.quota_file import DeclaredQuota, quota_file
from telemetry.ingest.arrow_tables import usage_table
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.kafka.quota_files import quotas_of
from tests.kit.recordings import PRODUCER, START_MS, Used, recorded

_EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
CI = Path(__file__).parents[2] / "deploy" / "ci"
BIN = Path(sys.executable).parent
USER = "of-a-pull-request"

# What the steps ask of Docker, with this checkout as the image.
DOCKER = """#!/bin/bash
set -eu
cd "$(dirname "$0")"
command=$1; shift
case $command in
run)
  touch out err
  until [ "$1" = the-image ]; do shift; done; shift
  (set +e; headroom "$@" > out 2> err; echo $? > status) > /dev/null 2>&1 & ;;
logs) cat out; cat err >&2 ;;
inspect) if [ -e status ]; then echo false; else echo true; fi ;;
wait) until [ -e status ]; do sleep 0.2; done; cat status ;;
esac
"""
GH = """#!/bin/bash
set -eu
[ "$1 $2 $3 $4" = "pr comment 7 --body-file" ] && cp "$5" comment.md
"""
CLIENT = """#!{python}
import signal, sys, time
from confluent_kafka import Producer
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
producer = Producer({{"bootstrap.servers": sys.argv[1], "client.id": "judged", "log_level": 2}})
try:
    time.sleep({lives_s})
finally:
    producer.close()
"""


class Ran(NamedTuple):
    """The exit status of a step's last command, and what was printed."""

    status: int
    output: str


class Workflow:
    """`values`: of expressions, as `vars.NAME`. `replaced`: texts of the scripts by others, such as ports."""

    def __init__(self, path: Path, values: Mapping[str, str], replaced: Mapping[str, str] | None = None) -> None:
        self._document: dict[str, Any] = yaml.safe_load(path.read_text())
        self._values = values
        self._replaced = replaced or {}

    def run(self, job: str, directory: Path, path: str, **environment: str) -> Iterator[Ran]:
        """A result for each step that has a script: those with `if: always()`, and the others until one failed."""
        failed = False
        for step in self._document["jobs"][job]["steps"]:
            if "run" not in step or (failed and step.get("if") != "always()"):
                continue
            given = {**self._document.get("env", {}), **step.get("env", {})}
            variables = {name: self._filled(str(value)) for name, value in given.items()}
            script = self._filled(step["run"])
            for text, other in self._replaced.items():
                script = script.replace(text, other)
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
                cwd=directory,
                env={**os.environ, **variables, **environment, "PATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            failed = failed or done.returncode != 0
            yield Ran(done.returncode, done.stdout)

    def _filled(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: self._values[found[1]], text)


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The PATH of the steps."""
    program(tmp_path / "bin" / "docker", DOCKER)
    program(tmp_path / "bin" / "gh", GH)
    return os.pathsep.join([str(tmp_path / "bin"), str(BIN), os.environ["PATH"]])


@pytest.mark.parametrize("workflow", sorted(CI.iterdir()), ids=lambda path: path.stem)
def test_workflow_matches_githubs_schema(workflow: Path) -> None:
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(("lives_s", "status"), [(120, 0), (4, 3)], ids=["whole script", "closed early"])
def test_client_is_judged_in_a_container(path: str, tmp_path: Path, lives_s: int, status: int) -> None:
    program(tmp_path / "start-client", CLIENT.format(python=sys.executable, lives_s=lives_s))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    judged = Workflow(CI / "verify-client.yaml", {"vars.HEADROOM_IMAGE": "the-image"}, {"127.0.0.1:9092": address})
    steps = list(judged.run("verify-client", tmp_path, path))
    assert [step.status for step in steps] == [0, status], steps
    suite = ElementTree.fromstring((tmp_path / "kip-714.xml").read_text())
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert len(cases) > 15
    assert any(cases.values()) == bool(status)
    assert cases["first-get"] == []


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[RunningClickHouse]:
    """Five minutes of a client that sends 2000 bytes/s."""
    with running_clickhouse(tmp_path / "clickhouse") as running:
        start_ms = (time.time_ns() // 60_000_000_000 - 12) * 60_000
        rows = [row._replace(ts_ms=row.ts_ms - START_MS + start_ms) for row in recorded(Used(USER, "it", [2000] * 300))]
        running.store.insert("quota_usage", usage_table(rows, start_ms), token="usage")
        yield running


@pytest.mark.kafka
@pytest.mark.clickhouse
def test_quotas_are_planned_applied_and_compared(
    kafka: LocalCluster, recording: RunningClickHouse, path: str, tmp_path: Path
) -> None:
    values = {"vars.KAFKA_BOOTSTRAP": kafka.bootstrap, "vars.HEADROOM_URL": recording.url, "github.token": "token"}
    values |= {"secrets.KAFKA_PROPERTIES": "security.protocol=PLAINTEXT", "github.event.number": "7"}
    workflow = Workflow(CI / "quotas.yaml", values)
    exported = CliRunner().invoke(app, ["quotas", "export", "--bootstrap-server", kafka.bootstrap]).stdout
    there = quotas_of(exported)  # by other tests

    def declare(value: float) -> None:
        declared = DeclaredQuota(entity_of({"user": USER}), {PRODUCER: value})
        (tmp_path / "quotas.yaml").write_text(quota_file([*there, declared]))

    def run(job: str) -> list[int]:
        return [step.status for step in workflow.run(job, tmp_path, path)]

    declare(1000.0)
    assert run("plan") == [0, 4, 0]  # the comment is made although the plan fails
    comment = (tmp_path / "comment.md").read_text()
    assert ("more than --max-harm 0" in comment, f"1: {USER}/it" in comment) == (True, True)
    assert re.search(rf"^\| newly throttled .*\| {USER} \| it \|", comment, re.MULTILINE), comment
    declare(5000.0)
    assert run("plan") == [0, 0, 0]
    assert run("drift") == [0, 4]
    assert run("apply") == [0, 0]
    assert run("drift") == [0, 0]
    undo = ["quotas", "apply", "-f", str(tmp_path / "undo.yaml"), "--yes", "--bootstrap-server", kafka.bootstrap]
    assert CliRunner().invoke(app, undo).exit_code == 0
    assert run("drift") == [0, 4]
