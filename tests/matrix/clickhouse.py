"""`python -m tests.matrix.clickhouse`: the statements of minutes and jobs in the engine of ClickHouse 26.9, beside the
managed server's 25.8: the same rows, from the same samples. Exits 1 when they differ.

No such server can be had from a package index; chDB has its engine, in a virtual environment of its own (.cache).
"""

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
from exporters.clickhouse.client import DEDUPLICATE_SELECT
from quota_metrics.minutes.records import statement
from quota_metrics.minutes.surroundings import TELEMETRY_PARAMETERS
from quota_metrics.minutes.usage_minutes import SampleTable, minutes
from quota_metrics.verdict.thresholds import SCHEMA_VALUES
from spark_jobs.clickhouse import queries
from spark_jobs.time_range import TimeRange
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import now_ms
from tests.kit.usage_rows import FILL_SECONDS

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
    when = TimeRange(start_ms, start_ms + MINUTES * 60_000, 60)
    span = {"from_ms": when.from_ms, "to_ms": when.to_ms, "window_ms": when.window_ms, "source": "gateway"}
    rows = {"cluster": "c", "start": start_ms, "clients": CLIENTS, "first": 0, "rows": CLIENTS * 60 * MINUTES}
    yield Asked("samples", FILL_SECONDS, rows)
    for table in SampleTable:
        sql = f"SELECT * FROM ({minutes(table)}) ORDER BY ALL"
        yield Asked(f"minutes of {table}", sql, {**span, "cluster": "", "computed_ms": when.to_ms})
    sql = f"INSERT INTO usage_1m {minutes(SampleTable.ALL)}"
    yield Asked("usage_1m", sql, {**span, "cluster": "", "computed_ms": when.to_ms})
    more = {**TELEMETRY_PARAMETERS, "telemetry": 1, "offset_ms": 0, "since_ms": when.from_ms, "cluster": ""}
    more |= {"minute_s": when.to_ms // 1000, "now_ms": when.to_ms, "first_s": when.from_ms // 1000}
    more |= {"last_s": when.to_ms // 1000, "gone_ms": 60_000, "seen_from_ms": 0}
    for name in ("telemetry", "byte_reports", "instances", "clients", "past", "changed_minutes", "newest_second"):
        yield Asked(name, statement(name), {**span, **more})
    of_job = {"step_ms": 60_000, "watermark_ms": 0}
    for name in ("COUNTS", "BAD_ROWS", "LATE_WINDOWS", "LATE_LIMITS", "UNRESOLVED_CLIENTS", "LIMITS", "OBSERVED"):
        yield Asked(name, getattr(queries, name), {**span, **more, **of_job})


def of_server(clickhouse: RunningClickHouse, asked: list[Asked]) -> Iterator[list[Any]]:
    for each in asked:
        if not each.sql.lstrip().startswith("INSERT"):
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
    text = json.dumps([*settings, *first, *texts])
    done = subprocess.run([python, "-c", _ENGINE, directory], input=text, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    refused = [answer for answer in answers[: -len(asked)] if isinstance(answer, str)]
    assert not refused, refused  # settings and tables
    return answers[-len(asked) :]


def _filled(asked: Asked) -> str:
    def literal(place: re.Match[str]) -> str:
        value = asked.parameters[place[1]]
        return f"'{value}'" if isinstance(value, str) else f"CAST({value!r} AS {place[2]})"

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
