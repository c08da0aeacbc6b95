"""`python -m tests.matrix.spark [JOB ...] [RELEASE ...]`: the jobs on other releases of Spark, each beside the newest:
the same rows. Each writes its cell of the table of docs/spark-jobs.md. Exits 1 when one does not work.

A release is PySpark of PyPI in a virtual environment of its own (.cache), whose other packages are those of the tests.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark

from spark_jobs.cli import JOBS
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.job_rows import CLUSTER, START, committed, fill
from tests.kit.usage_rows import FRIDAY_MS, insert_limits
from tests.matrix.clickhouse import alike
from tests.matrix.page_table import write_cells

NEWEST = pyspark.__version__
RELEASES = ("3.5.9", "4.0.5", "4.1.4", NEWEST)
ROOT = Path(__file__).parents[2]
PAGE = Path("docs/spark-jobs.md")
STREAM = "quota-headroom --stream"
ALL = (*JOBS, STREAM)
COLUMNS = ("job", *(f"Spark {release}" for release in RELEASES))
DAYS, USERS = 3, 6
JOB_S = 1800  # beside whatever else the machine does

# A minute in five of some users: below their limit, beyond it once a day, or muted for half of the time.
_HISTORY = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, interval_ms, muted_ms, received_at)
SELECT 'history', 'producer_byte_rate',
    fromUnixTimestamp64Milli({start:Int64} + intDiv(number, {users:UInt32}) * 300000 + 59000) AS ts,
    concat('user-', toString(number % {users:UInt32})), 'app', '', 1, toUInt64(60 * rate),
    100 + 150 * (number % {users:UInt32}) + 100 * sin(2 * pi() * intDiv(number, {users:UInt32}) / 288)
        + intHash32(number) % 50 AS rate, 0, 0, 'gateway', 60000, if(number % {users:UInt32} = 5, 30000, 0), ts
FROM numbers({rows:UInt64})"""
_INSTANCES = """
INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,
    software_version, source_address, first_seen, last_seen, terminated, pushes, points)
SELECT 'history', toUUID(concat('00000000-0000-4000-8000-00000000000', toString(number))), 'app',
    concat('user-', toString(number)), 'apache-kafka-java', if(number = 0, '3.7.0', '4.3.1'), '10.0.0.1',
    fromUnixTimestamp64Milli({start:Int64}), fromUnixTimestamp64Milli({start:Int64} + 3600000 * number), 0, 10, 100
FROM numbers({users:UInt32})"""
_OWNERS = """
owners: [{team: first, user: "user-[0-2]", contact: p@example.org}, {team: second, user: "user-*"}]
prices: {in_per_gb: 2.0, out_per_gb: 0.5}
capacity: {in_bytes_per_s: 1.0e13, out_bytes_per_s: 1.0e14}
"""


class Answer(NamedTuple):
    """Of a job's process."""

    code: int
    rows: Any
    said: str


def python_of(release: str) -> Path:
    """The Python with this PySpark; installs it once. The newest is that of the tests."""
    if release == NEWEST:
        return Path(sys.executable)
    place = Path(".cache").resolve() / f"pyspark-{release}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"pyspark=={release}"], check=True)
        packages = next((place / "lib").glob("python3.*/site-packages"))
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "tests.pth").write_text("\n".join(ours))  # searched after its own
        (place / "ready").touch()
    return python


def fill_history(clickhouse: RunningClickHouse) -> tuple[int, int]:
    """Three days of usage, a quota, instances; returns from when to when, in seconds."""
    start = FRIDAY_MS - DAYS * 86_400_000
    parameters = {"start": start, "users": USERS, "rows": DAYS * 288 * USERS}
    for statement in (_HISTORY, _INSTANCES):
        clickhouse.store.command(statement, parameters)
    insert_limits(clickhouse.store, "history", start - 60_000, {"<default>": 800.0})
    return start // 1000, FRIDAY_MS // 1000


def run_job(python: Path, clickhouse: RunningClickHouse, name: str, *options: str) -> Answer:
    """`headroom job`, by this Python."""
    command = [str(python), "-m", "headroom", "job", name, "--url", clickhouse.url, "--output", "json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=JOB_S, check=False)
    rows = json.loads(done.stdout) if done.returncode == 0 else []
    return Answer(done.returncode, [{**row, "made_at": None} for row in rows], done.stderr)


def answer(job: str, release: str, clickhouse: RunningClickHouse, history: tuple[int, int], scratch: Path) -> Answer:
    """What a job reports, or quota-headroom publishes, on this release."""
    python = python_of(release)
    three_minutes = ["--from", str(START // 1000), "--to", str(START // 1000 + 180), "--cluster", CLUSTER]
    days = ["--from", str(history[0]), "--to", str(history[1]), "--cluster", "history"]
    if job in ("quota-headroom", STREAM):
        for table in ("quota_utilization", "quota_utilization_windows", "job_runs"):
            clickhouse.store.command(f"TRUNCATE TABLE headroom.{table}", {})
        done = run_job(python, clickhouse, *job.split(), *three_minutes, *(["--once"] if job == STREAM else []))
        return done._replace(rows=[list(map(str, row)) for row in committed(clickhouse)])
    if job == "team-report":
        owners = scratch / "owners.yaml"
        owners.write_text(_OWNERS)
        days += ["--owners", str(owners)]
    return run_job(python, clickhouse, job, *days)


def verdict(answer: Answer, newest: Answer) -> str:
    """`works`, or what is wrong."""
    if answer.code:
        return f"exit {answer.code}: {answer.said[-500:]}"
    if not answer.rows:
        return "no rows"
    return "works" if alike(answer.rows, newest.rows) else "other rows"


def main(jobs: Sequence[str], releases: Sequence[str]) -> int:
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, running_clickhouse(Path(scratch) / "server") as clickhouse:
        fill(clickhouse)
        history = fill_history(clickhouse)
        for job in jobs:
            newest = answer(job, NEWEST, clickhouse, history, Path(scratch))
            for release in releases:
                seen = newest if release == NEWEST else answer(job, release, clickhouse, history, Path(scratch))
                said = verdict(seen, newest)
                print(f"Spark {release}, {job}: {said}, {len(seen.rows)} rows", flush=True)
                failed += [job] * (said != "works")
                cell = {(f"`{job}`", f"Spark {release}"): "works" if said == "works" else "fails"}
                write_cells(PAGE, COLUMNS, [f"`{name}`" for name in ALL], cell)
    return int(bool(failed))


if __name__ == "__main__":
    chosen = sys.argv[1:]
    if unknown := set(chosen) - {*ALL, *RELEASES}:
        sys.exit(f"no such job or release: {', '.join(sorted(unknown))}")
    jobs = [job for job in ALL if job in chosen]
    releases = [release for release in RELEASES if release in chosen]
    sys.exit(main(jobs or ALL, releases or RELEASES))
