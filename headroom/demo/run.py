"""`headroom demo`: runs a real broker and sixteen real clients, prints a table of levels, and writes the evidence."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import orjson
from rich.console import Console

from exporters.text_table import Layout, table_lines
from headroom.demo import evidence
from headroom.demo.evidence import Row
from headroom.demo.job import run_job
from headroom.demo.kit.errors import DemoError
from headroom.demo.kit.serving import CLUSTER, Serving
from headroom.demo.levels import JOB, Levels, by_client, differing, equal_levels_text
from headroom.demo.scenario import Minute, Scenario, Tell
from headroom.demo.screenshots import take_screenshots
from headroom.demo.script import CLIENTS, FAMILIES
from quota_metrics.amounts import rate_text
from spark_jobs.reports import headroom_report as report

REPORT = "headroom.json"
EVIDENCE = "evidence.json"
HTTP_PORT = 9644  # of the pages, as in the documentation

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PIPE_WIDTH = 240  # width of a table in a pipe


class Interrupted(BaseException):
    """Ctrl-C. Not KeyboardInterrupt, which py4j catches and mishandles."""


class Interrupts:
    """Makes Ctrl-C (SIGTERM, SIGHUP) raise Interrupted until the clean-up begins.

    Set explicitly, because a shell starts background jobs with SIGINT ignored.
    """

    def __init__(self) -> None:
        self.status = 0
        self.is_expected = False  # whether to be interrupted is how it ends
        self._cleaning = False
        for number in _SIGNALS:
            signal.signal(number, self._interrupt)

    def hold(self) -> None:
        """Ignores further signals."""
        self._cleaning = True

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.status = 128 + number
        if not self._cleaning:
            raise Interrupted


def run_demo(output: Path, *, keep: bool = False) -> int:
    """Runs the demo and writes its report to `output`. Returns 0, 1 after an error, 128 + signal when interrupted.

    `keep`: everything keeps running after the report until interrupted; then returns 0.
    """
    began_s = time.monotonic()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)

    def tell(text: str) -> None:
        console.print(f"{time.monotonic() - began_s:4.0f} s  {text}", markup=False, soft_wrap=True)

    interrupts = Interrupts()
    with ExitStack() as stack:
        try:
            scenario = Scenario(stack, tell, http_port=HTTP_PORT if keep else 0)
            _show(scenario, output, console, tell, keep=keep)
            if keep:
                interrupts.is_expected = True
                tell("everything runs on until Ctrl-C; in another terminal, with . .venv/bin/activate:")
                for line in _next_steps(scenario.serving):
                    console.print(f"  {line}", markup=False, soft_wrap=True)
                scenario.keep()
        except DemoError as exc:
            kept = scenario.keep_logs(output / "logs")
            fault = f"headroom: {exc}" + (f" (logs in {output / 'logs'})" if kept else "")
            Console(stderr=True, highlight=False).print(fault, markup=False, soft_wrap=True)
            return 1
        except Interrupted:
            return 0 if interrupts.is_expected else interrupts.status
        finally:
            interrupts.hold()
    return 0


def _show(scenario: Scenario, output: Path, console: Console, tell: Tell, *, keep: bool) -> None:
    """Raises DemoError when something does not work, or does not end as the script intends."""
    _make_room(output)
    scenario.build()
    minute = scenario.measure()
    levels = scenario.levels(minute)
    pictures = take_screenshots(scenario.serving.http, CLUSTER, output)
    tell(f"screenshots of the pages: {', '.join(pictures) or 'none, no Chromium could be started'}")
    if not keep:
        scenario.quiet_down()
    tell("running the Spark job quota_headroom over the measured minute")
    sql = scenario.serving.sql
    run_job(sql, minute.from_ms, minute.to_ms, output, scenario.directory / "job.log")
    rows = report.from_json((output / REPORT).read_bytes())
    compared = minute.byte_rates.compare(rows)
    found = evidence.stored(sql, CLUSTER, minute.from_ms, minute.to_ms)
    levels[JOB] = by_client(rows)
    _write_evidence(output / EVIDENCE, minute, compared, found, levels)
    for shown in report.to_table(rows, console.width if console.is_terminal else None):
        console.print(shown, soft_wrap=True)
    for line in _comparison(compared):
        console.print(line, markup=False, soft_wrap=True)
    for line in _summary(found):
        tell(line)
    tell(f"left in {output}/: {', '.join(sorted(file.name for file in output.iterdir()))}")
    tell(equal_levels_text(levels, len(CLIENTS)))
    faults = [*evidence.faults(rows, compared, found), *differing(levels)]
    if faults:
        raise DemoError("; ".join(faults))


def _make_room(output: Path) -> None:
    """Removes the report of an earlier run. Raises DemoError."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in (REPORT, "report.html", "headroom.parquet", EVIDENCE):
            (output / name).unlink(missing_ok=True)
        for screenshot in output.glob("page-*.png"):
            screenshot.unlink()
        shutil.rmtree(output / "logs", ignore_errors=True)
    except OSError as exc:
        raise DemoError(f"cannot write to {output}: {exc.strerror}") from exc


def _write_evidence(
    target: Path,
    minute: Minute,
    compared: Sequence[Row],
    found: Mapping[str, Sequence[Row]],
    levels: Mapping[str, Levels],
) -> None:
    window = {"from_ms": minute.from_ms, "to_ms": minute.to_ms}
    shown = {name: {client_id: level for (_, client_id), level in of.items()} for name, of in levels.items()}
    content = {"window": window, "byte_rates": compared, "levels": shown, **found}
    target.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _comparison(compared: Sequence[Row]) -> list[str]:
    """Headroom's usage beside the broker's, means of the minute."""
    cells = [
        (
            row["client_id"],
            *(rate_text(row[name], row["quota_key"]) for name in ("usage", "jmx_byte_rate")),
            f"{row['difference']:+.2%}",
        )
        for row in compared
    ]
    headings = ("client-id", "usage (gateway)", "byte-rate (broker, JMX)", "difference")
    return [line.text for line in table_lines(headings, cells, None, Layout(numbers=headings[1:]))]


_LEVELS = "SELECT client_id, level, reason FROM headroom_now"


def _next_steps(serving: Serving) -> Iterator[str]:
    """Lines to copy: the page, SQL, the terminal, the job, the subscriptions."""
    sql = f"http://{serving.sql}"
    yield f"open http://{serving.http}/"
    yield f"headroom top --http {serving.http}"
    yield f"headroom sql --url {sql} '{_LEVELS}'"
    yield f"headroom job quota-headroom --url {sql} --since 5m"
    yield f"headroom subscriptions list --bootstrap-server {serving.kafka}"


def _summary(found: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """A summary of the contents of ClickHouse, as lines."""
    for family in FAMILIES:
        rows = [row for row in found["points"] if row["client_id"].startswith(family)]
        software = ", ".join(sorted({f"{row['software_name']} {row['software_version']}" for row in rows})) or "none"
        points = sum(row["points"] for row in rows)
        yield f"telemetry of {len(rows)} {family} clients ({software}): {points} points"
    for row in found["throttle_samples"]:
        longest = report.throttle_text(row["longest_ms"])
        yield f"throttled on the wire: {row['client_id']}, {row['responses']} responses, {longest} at most"
