"""The jobs as commands: for `headroom job` and for spark-submit.

Exit codes: 0 done, 1 failed, 2 wrong configuration or usage, 3 nothing to read or ClickHouse unavailable, 4 `--fail-on`
matched, 143 ended by SIGTERM (recorded in job_runs as a failure).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from exporters.clickhouse.connection import password_of

if TYPE_CHECKING:
    from spark_jobs.options import Options
    from spark_jobs.reports.report import Report
    from spark_jobs.time_range import TimeRange

Job = Callable[["Options"], list[dict[str, Any]]]
Loader = Callable[[], Job]

DEFAULT_URL = "http://127.0.0.1:8123"

EXIT_CONFIGURATION = 2
EXIT_SOURCE = 3
EXIT_FAIL_ON = 4

# The help text and default range of each job.
JOBS: Mapping[str, tuple[str, str]] = {
    "quota-headroom": ("Which client is throttled or near its quota, by which quota, on which broker.", "15m"),
    "throttle-forecast": ("When each bucket reaches its limit, with what confidence.", "14d"),
    "backtest": ("How good the forecasts would have been: history replayed, against simple ones.", "14d"),
    "client-inventory": ("Which clients there are: instances, versions, silent ones, what they cost.", "7d"),
    "capacity-report": ("Headroom and growth for weeks, and the limits that would fit.", "28d"),
}

JOBS_WITH_LEVELS = ("quota-headroom",)  # the rows of others have no `level`

_PIPE_WIDTH = 1000  # width of a table written to a pipe or file: no line is wrapped


class ReportFormat(StrEnum):
    """Values of --output."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"
    PARQUET = "parquet"


class Level(StrEnum):
    """Values of --fail-on."""

    WATCH = "watch"
    WARN = "warn"
    CRITICAL = "critical"
    THROTTLED = "throttled"


def command(name: str, load_job: Loader) -> Callable[..., None]:
    """The command of a job. `load_job` imports its `run` function when the job runs: importing Spark takes half a
    second."""
    about, default_since = JOBS[name]

    def invoke(
        url: Annotated[
            str, typer.Option(envvar="HEADROOM_URL", help="SQL endpoint of Headroom, or a ClickHouse server")
        ] = DEFAULT_URL,
        since: Annotated[str, typer.Option(help="from this long ago until now: 90s, 15m, 2h, 7d")] = default_since,
        start: Annotated[str, typer.Option("--from", help="instead of --since: ISO 8601 (UTC) or epoch seconds")] = "",
        end: Annotated[str, typer.Option("--to", help="end of the range that starts at --from")] = "",
        window: Annotated[int, typer.Option(help="length of a window in seconds, aligned to the epoch")] = 60,
        cluster: Annotated[str, typer.Option(help="this cluster only")] = "",
        source: Annotated[str, typer.Option(help="source of usage: gateway, jmx or client")] = "gateway",
        user: Annotated[str, typer.Option(help="report this user only")] = "",
        client_id: Annotated[str, typer.Option("--client-id", help="report this client-id only")] = "",
        top: Annotated[int, typer.Option(help="most rows, worst first; 0: all (quota-headroom: 10,000)", min=0)] = 0,
        output: Annotated[ReportFormat, typer.Option(help="format of the report")] = ReportFormat.TABLE,
        path: Annotated[Path | None, typer.Option(help="file for the report, else stdout")] = None,
        master: Annotated[str, typer.Option(help="Spark's master, spark://host:7077; else this machine")] = "",
        fail_on: Annotated[
            Level | None, typer.Option(help="quota-headroom: exit 4 when a client is at this level or worse")
        ] = None,
        stream: Annotated[bool, typer.Option(help="quota-headroom: run continuously as rows arrive")] = False,
        once: Annotated[bool, typer.Option(help="with --stream: exit when all present rows are processed")] = False,
        checkpoint: Annotated[Path | None, typer.Option(help="checkpoint directory of --stream")] = None,
        watch: Annotated[float, typer.Option(help="utilisation from which a client is at `watch`")] = 0.60,
        warn: Annotated[float, typer.Option(help="the same for `warn`")] = 0.80,
        critical: Annotated[float, typer.Option(help="the same for `critical`")] = 0.95,
    ) -> None:
        with _exit_codes():
            _raise_on_sigterm()
            job = load_job()
            from spark_jobs.options import Options
            from spark_jobs.transforms.thresholds import Thresholds

            if stream and (name != "quota-headroom" or checkpoint is None):
                raise ValueError("--stream is for quota-headroom, and needs --checkpoint")
            if fail_on is not None and name not in JOBS_WITH_LEVELS:
                raise ValueError(f"--fail-on is for {', '.join(JOBS_WITH_LEVELS)}: {name} computes no levels")
            if output is ReportFormat.PARQUET and path is None:
                raise ValueError("--output parquet needs --path")
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise ValueError(f"--path {path} is a directory, or its directory does not exist")
            options = Options(
                url=url,
                when=_time_range(since, start, end, window),
                recent=not start,
                password=password_of(os.environ),
                source=source,
                cluster=cluster,
                user=user,
                client_id=client_id,
                top=top,
                thresholds=Thresholds(watch, warn, critical),
                master=master,
                checkpoint=checkpoint if stream else None,
                once=once,
            )
            rows = job(options)
            _deliver(_report(name), rows, output, path)
            if fail_on is not None and _reaches(rows, fail_on):
                raise typer.Exit(EXIT_FAIL_ON)

    invoke.__doc__ = f"{about}\n\nA server's password: HEADROOM_CLICKHOUSE_PASSWORD."
    return invoke


def main(name: str, job: Job) -> None:
    """The entry point under spark-submit."""
    # A rich traceback would print local variables, the password among them.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command(name, lambda: job))
    app()


class Terminated(SystemExit):
    """Raised on SIGTERM so that context managers exit and job_runs does not keep the run as running."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def _raise_on_sigterm() -> None:
    """Installs the handler if this is the main thread; Python handles signals only there."""

    def terminate(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second SIGTERM would interrupt recording the first
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Maps expected errors to one line on stderr and an exit code."""
    from pyspark.errors import PySparkException

    from spark_jobs.clickhouse.client import SourceError
    from spark_jobs.session import JavaError

    try:
        yield
    except PySparkException:
        raise  # a bug of ours, even if it is a ValueError
    except (ValueError, JavaError, OSError) as exc:
        _give_up(exc, EXIT_CONFIGURATION)
    except SourceError as exc:
        _give_up(exc, EXIT_SOURCE)


def _time_range(since: str, start: str, end: str, window_s: int) -> TimeRange:
    from spark_jobs import time_range

    if bool(start) != bool(end):
        raise ValueError("--from and --to go together")
    if start:
        return time_range.between(start, end, window_s)
    return time_range.since(since, time.time_ns() // 1_000_000, window_s)


def _report(name: str) -> Report:
    from spark_jobs.reports import REPORTS

    return REPORTS[name]


def _reaches(rows: Sequence[Mapping[str, Any]], fail_on: Level) -> bool:
    from spark_jobs.transforms.severity import LEVELS

    return any(LEVELS.index(row["level"]) >= LEVELS.index(fail_on) for row in rows)


def _deliver(report: Report, rows: list[dict[str, Any]], output: ReportFormat, path: Path | None) -> None:
    if output is ReportFormat.TABLE:
        _write_table(report.to_table(rows), path)
    elif output is ReportFormat.PARQUET:
        _write(report.to_parquet(rows), path)
    else:
        _write(report.to_json(rows) if output is ReportFormat.JSON else report.to_html(rows).encode(), path)


def _write_table(table: Any, path: Path | None) -> None:
    console = Console()
    if path is None and console.is_terminal:
        console.print(table)
        return
    console = Console(width=_PIPE_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(table)
    _write(captured.get().encode(), path)


def _write(content: bytes, path: Path | None) -> None:
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        path.write_bytes(content)


def _give_up(exc: Exception, code: int) -> None:
    sys.stderr.write(f"headroom: {exc}\n")
    raise typer.Exit(code) from exc
