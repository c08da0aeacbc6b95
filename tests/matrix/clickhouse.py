"""`python -m tests.matrix.clickhouse`: the statements of minutes and jobs in the engine of ClickHouse 26.9, beside the
managed server's 25.8: the same rows, from the same samples. Exits 1 when they differ.

No such server can be had from a package index; chDB has its engine, in a virtual environment of its own (.cache).
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from exporters.clickhouse import schema
from exporters.clickhouse.releases import DEDUPLICATE_SELECT, EARLIER_PLANNER
from quota_metrics.levels.definition import SCHEMA_VALUES, Thresholds
from quota_metrics.levels.minute import compute_minute, minute_parameters
from quota_metrics.levels.windows_query import SETTINGS, Samples, WindowsQuery, store_minutes
from spark_jobs.clickhouse import queries
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import now_ms
from tests.kit.many_rows import FILL

ENGINE = "chdb==4.4.0"
CLIENTS, MINUTES = 200, 5
_PLACE = re.compile(r"\{(\w+):([^}]+)\}")
# Reads statements from standard input, a JSON array, and prints the rows of each or its error.
_ENGINE = """
import json, sys
from chdb import session
engine = session.Session(sys.argv[1])
for sql in json.load(sys.stdin):
    try:
        print(json.dumps([json.loads(line) for line in str(engine.query(sql, "JSONEachRow")).splitlines()]))
    except Exception as failed:
        print(json.dumps(str(failed)[:500]))
"""


class Asked(NamedTuple):
    """A statement."""

    name: str
    sql: str
    parameters: Mapping[str, Any]


def statements(start_ms: int) -> Iterator[Asked]:
    """In the order in which they run."""
    when, thresholds = TimeRange(start_ms, start_ms + MINUTES * 60_000, 60), Thresholds()
    times = {"from_ms": when.from_ms, "to_ms": when.to_ms, "window_ms": when.window_ms}
    key = {**times, "source": "gateway", "cluster": "c", "quota_key": "producer_byte_rate", "run": "none"}
    rows = {"cluster": "c", "start": start_ms, "clients": CLIENTS, "first": 0, "rows": CLIENTS * 60 * MINUTES}
    yield Asked("samples", FILL, rows)
    for seconds in (60, 300):
        yield Asked(f"windows of {seconds} s", _all(WindowsQuery(seconds)), {**key, "window_ms": seconds * 1000})
    yield Asked("usage_1m", store_minutes(), {**key, "computed_ms": when.to_ms})
    yield Asked("windows of usage_1m", _all(WindowsQuery(60, Samples.MINUTES)), key)
    for minute in range(MINUTES):
        parameters = minute_parameters(start_ms // 1000 + 60 * minute, thresholds)
        yield Asked(f"minute {minute}", compute_minute(thresholds), parameters)
    levels = "* EXCEPT (computed_at) REPLACE (toString(level) AS level, toString(instant_level) AS instant_level)"
    yield Asked("levels", f"SELECT {levels} FROM headroom.headroom_minutes ORDER BY ALL", {})
    more = {"telemetry": 1, "step_ms": 60_000, "watermark_ms": 0, "seen_from_ms": 0}
    for name in ("TELEMETRY", "COUNTS", "COUNTS_STORED", "LATE_WINDOWS", "CLIENTS", "LIMITS", "INSTANCES", "OBSERVED"):
        yield Asked(name, getattr(queries, name), {**key, **more})


def _all(windows: WindowsQuery) -> str:
    return f"SELECT * FROM ({windows.usage()}) ORDER BY ALL {SETTINGS}"


def of_server(clickhouse: RunningClickHouse, asked: list[Asked]) -> Iterator[list[Any]]:
    for each in asked:
        if each.sql.lstrip().startswith("SELECT"):
            yield list(clickhouse.store.rows(each.sql, each.parameters))
        else:
            clickhouse.store.command(each.sql, each.parameters)
            yield []


class EngineSetting(NamedTuple):
    """A row of system.settings; the engine has no users, whom a profile could forbid anything."""

    value: str
    readonly: int


def of_engine(directory: Path, asked: list[Asked], first: Sequence[str] = (), *, empty: bool = False) -> list[Any]:
    """What the newer engine answers, after the statements `first`: rows, or an error as text. `empty`: without a
    schema."""
    python = Path(".cache") / ENGINE / "bin" / "python"
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", ENGINE], check=True)
    made = (each for one in schema.migrations(SCHEMA_VALUES) for each in one.statements)
    tables = [] if empty else [each.replace("{{database}}", "headroom") for each in made]
    texts = ["CREATE DATABASE headroom", "USE headroom", *tables, *(_filled(each) for each in asked)]
    settings = [f"SELECT 1 AS one SETTINGS {name} = '{value}'" for name, value in DEDUPLICATE_SELECT.items()]
    text = json.dumps([each.replace(EARLIER_PLANNER, "") for each in (*settings, *first, *texts)])
    done = subprocess.run([python, "-c", _ENGINE, directory], input=text, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    refused = [answer for answer in answers[: -len(asked)] if isinstance(answer, str)]
    assert not refused, refused  # settings and tables
    return answers[-len(asked) :]


def _filled(asked: Asked) -> str:
    def literal(place: re.Match[str]) -> str:
        value = asked.parameters[place[1]]
        return f"'{value}'" if isinstance(value, str) else f"CAST({value} AS {place[2]})"

    return _PLACE.sub(literal, asked.sql)


def alike(one: Any, other: Any) -> bool:
    """Equal, numbers to nine digits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(float(one), float(other), rel_tol=1e-9)
    return str(one) == str(other)  # one writes large integers as numbers, the other as text


def main() -> int:
    start_ms = now_ms() // 60_000 * 60_000 - 10 * 60_000
    asked = list(statements(start_ms))
    with tempfile.TemporaryDirectory() as scratch, running_clickhouse(Path(scratch) / "server") as clickhouse:
        expected = list(of_server(clickhouse, asked))
        found = of_engine(Path(scratch) / "engine", asked)
    wrong = 0
    for each, here, there in zip(asked, expected, found, strict=True):
        same = isinstance(there, list) and alike(here, there)
        wrong += not same
        print(f"{each.name}: {len(here)} rows, {'the same' if same else f'NOT the same: {str(there)[:300]}'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
