"""`quota-headroom` as a command: for `headroom job` and for spark-submit. Exit 2: configuration, 3: no ClickHouse."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from exporters.clickhouse.connection import password_of

if TYPE_CHECKING:
    from spark_jobs.time_range import TimeRange

Job = Callable[..., list[dict[str, Any]]]

DEFAULT_URL = "http://127.0.0.1:8123"

EXIT_CONFIGURATION = 2
EXIT_SOURCE = 3

_PIPE_WIDTH = 1000  # of a table that goes into a pipe or a file: no line is broken


class Output(StrEnum):
    """What to make of the report."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"
    PARQUET = "parquet"


def quota_headroom(load_job: Callable[[], Job]) -> Callable[..., None]:
    """The command. `load_job` gives what runs it, `spark_jobs.quota_headroom.run`, when it is really asked for: Spark
    takes half a second to import."""

    def command(
        url: Annotated[
            str, typer.Option(envvar="HEADROOM_URL", help="SQL door of Headroom, or a ClickHouse server")
        ] = DEFAULT_URL,
        since: Annotated[str, typer.Option(help="from this long ago until now: 90s, 15m, 2h, 7d")] = "15m",
        start: Annotated[str, typer.Option("--from", help="instead of --since: ISO 8601 (UTC) or epoch seconds")] = "",
        end: Annotated[str, typer.Option("--to", help="end of the time that begins with --from")] = "",
        window: Annotated[int, typer.Option(help="length of a window in seconds")] = 60,
        output: Annotated[Output, typer.Option(help="form of the report")] = Output.TABLE,
        path: Annotated[Path | None, typer.Option(help="file for the report, else stdout")] = None,
        watch: Annotated[float, typer.Option(help="utilisation from which a client is at `watch`")] = 0.60,
        warn: Annotated[float, typer.Option(help="the same for `warn`")] = 0.80,
        critical: Annotated[float, typer.Option(help="the same for `critical`")] = 0.95,
        source: Annotated[str, typer.Option(help="source of usage to go by: gateway, jmx or client")] = "gateway",
    ) -> None:
        """Which client is throttled or near its quota, by which quota, on which broker.

        A server's password: HEADROOM_CLICKHOUSE_PASSWORD.
        """
        job = load_job()
        from spark_jobs.transforms.severity import Thresholds

        with _exit_codes():
            if output is Output.PARQUET and path is None:
                raise ValueError("--output parquet needs --path")
            when = _time_range(since, start, end, window)
            password = password_of(os.environ)
            rows = job(url, when, password=password, thresholds=Thresholds(watch, warn, critical), source=source)
            _deliver(rows, output, path)

    return command


def main(job: Job) -> None:
    """The entry point under spark-submit."""
    # A pretty traceback would show the password among the locals.
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(quota_headroom(lambda: job))
    app()


@contextmanager
def _exit_codes() -> Iterator[None]:
    """What is no fault of ours becomes one line on stderr and an exit code."""
    from pyspark.errors import PySparkException

    from spark_jobs.clickhouse.client import SourceError
    from spark_jobs.session import JavaError

    try:
        yield
    except PySparkException:
        raise  # ours to mend, also where it calls itself a ValueError
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


def _deliver(rows: list[dict[str, Any]], output: Output, path: Path | None) -> None:
    from spark_jobs.reports import headroom_report as report

    if output is Output.TABLE:
        _print_table(report.to_table(rows), path)
    elif output is Output.PARQUET:
        _write(report.to_parquet(rows), path)
    else:
        _write(report.to_json(rows) if output is Output.JSON else report.to_html(rows).encode(), path)


def _print_table(table: Any, path: Path | None) -> None:
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
