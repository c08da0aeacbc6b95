"""The jobs as commands: for `headroom job` and for spark-submit.

A command has the flags of its job's options class, and refuses those of other jobs. Exit codes: 0 done, 1 failed,
2 wrong configuration or usage, 3 nothing to read or ClickHouse unavailable, 4 `--fail-on` matched, 143 ended by SIGTERM
(recorded in job_runs as a failure).
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

import typer
from rich.console import Console
from typer.core import TyperCommand

from exporters.clickhouse.connection import PASSWORD, PASSWORD_FILE, password_of
from quota_metrics.verdict.thresholds import STEPS
from spark_jobs import time_range
from spark_jobs.options import (
    DEFAULT_URL,
    ClientOptions,
    HeadroomOptions,
    JobOptions,
    SuggestOptions,
    TeamOptions,
    local_file,
)

OLDEST_SPARK = (3, 5)
_CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")  # by which PySpark makes a session of it
# Of what Spark reports when a Python worker failed.
_OURS = ("exporters", "quota_metrics", "spark_jobs")
_INSTALL = "install deploy/spark/requirements.txt there, or set spark.pyspark.python to a Python that has it"
# PySpark 3.5 writes versions as tuples.
_VERSIONS = re.compile(r"Python in worker has different version:? (\S.*?) than that in driver:? (\S.*?), PySpark")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_PACKAGE = re.compile(r"\b(\w+ >= [\w.]+) must be installed")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]*python[^"]*)"')
EXIT_CONFIGURATION = 2
EXIT_SOURCE = 3
EXIT_FAIL_ON = 4


class ReportFormat(StrEnum):
    """Values of --output."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"
    PARQUET = "parquet"
    YAML = "yaml"


_FORMATS = (ReportFormat.TABLE, ReportFormat.JSON, ReportFormat.HTML, ReportFormat.PARQUET)


class Job(NamedTuple):
    """What the command of a job says, its default range, its options class, and the formats of its report."""

    about: str
    since: str
    options: type[JobOptions]
    formats: tuple[ReportFormat, ...] = _FORMATS


JOBS: Mapping[str, Job] = {
    "quota-headroom": Job(
        "Which client is throttled or near its quota, by which quota, on which broker.", "15m", HeadroomOptions
    ),
    "throttle-forecast": Job("When each bucket reaches its limit, with what confidence.", "14d", ClientOptions),
    "backtest": Job(
        "How good the forecasts would have been: history replayed, against simple ones.", "14d", JobOptions
    ),
    "client-inventory": Job(
        "Which clients there are: instances, versions, silent ones, what they cost.", "7d", ClientOptions
    ),
    "quota-suggest": Job(
        "First or better quotas from recorded usage: a default, those beyond it, and quotas that do not fit.",
        "7d",
        SuggestOptions,
        (*_FORMATS, ReportFormat.YAML),
    ),
    "team-report": Job("Bytes, throttling, share, peak, growth and cost of each team.", "30d", TeamOptions),
}
WINDOWED = HeadroomOptions  # jobs with other options have windows of their own length

app = typer.Typer(help="Spark jobs over the collected data.", no_args_is_help=True)


def command(name: str) -> Callable[..., None]:
    """The command of a job. It imports the job when it runs: importing Spark takes half a second."""

    def invoke(**flags: Any) -> None:
        _require_spark(flags["master"])
        with _exit_codes():
            _raise_on_sigterm()
            output, path = flags.pop("output"), flags.pop("path")
            if output is ReportFormat.PARQUET and path is None:
                raise ValueError("--output parquet needs --path")
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                raise ValueError(f"--path {path} is a directory, or its directory does not exist")
            options = _options(JOBS[name].options, flags)
            report = import_module(f"spark_jobs.jobs.{name.replace('-', '_')}").run(options)
            _deliver(name, report.rows if isinstance(options, HeadroomOptions) else report, output, path)
            if isinstance(options, HeadroomOptions) and options.is_failed_by(report.levels):
                raise typer.Exit(EXIT_FAIL_ON)

    invoke.__doc__ = f"{JOBS[name].about}\n\nA server's password: HEADROOM_CLICKHOUSE_PASSWORD."
    invoke.__signature__ = Signature(_parameters(JOBS[name]))  # type: ignore[attr-defined] # what typer reads
    return invoke


class JobCommand(TyperCommand):
    """Says whose flag it is when one of another job is refused."""

    job: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises typer.Exit for a flag that only other jobs have."""
        own = _flag_names(JOBS[self.job])
        for flag in (arg.partition("=")[0] for arg in args):
            users = [name for name, job in JOBS.items() if flag in _flag_names(job)]
            if users and flag not in own:
                raise _exit(f"{flag} is for {', '.join(users)}: {self.job} does not use it")
        return super().parse_args(ctx, args)


def add_job(to: typer.Typer, name: str, job: str) -> None:
    """Adds the command `name`, which runs the job."""
    to.command(name, cls=type("JobCommand", (JobCommand,), {"job": job}))(command(job))


def main(name: str) -> None:
    """The entry point under spark-submit."""
    # A rich traceback would print local variables, the password among them.
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    add_job(alone, name, name)
    alone(prog_name=name)


def _flag(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _parameters(job: Job) -> list[Parameter]:
    """The range, the annotated fields of the options class, and where the report goes."""
    since = Annotated[str, typer.Option(help="from this long ago until now: 90s, 15m, 2h, 7d")]
    start = Annotated[str, typer.Option("--from", help="instead of --since: ISO 8601 (UTC) or epoch seconds")]
    end = Annotated[str, typer.Option("--to", help="end of the range that starts at --from")]
    window = Annotated[int, typer.Option(help="length of a window in seconds, aligned to the epoch")]
    text = "from this utilisation on `{}`, instead of the setting"
    steps = [_flag(name, Annotated[float | None, typer.Option(help=text.format(name))], None) for name in STEPS]
    formats: Any = Literal[job.formats]
    output = Annotated[formats, typer.Option(help="format of the report")]
    path = Annotated[
        Path | None, typer.Option(parser=local_file, metavar="FILE", help="file for the report, else stdout")
    ]
    kinds = get_type_hints(job.options, include_extras=True)
    return [
        *(_flag("since", since, job.since), _flag("start", start, ""), _flag("end", end, "")),
        *([_flag("window", window, 60), *steps] if job.options is WINDOWED else []),
        *(
            _flag(option.name, kinds[option.name], DEFAULT_URL if option.name == "url" else option.default)
            for option in fields(job.options)
            if hasattr(kinds[option.name], "__metadata__")
        ),
        *(_flag("output", output, ReportFormat.TABLE), _flag("path", path, None)),
    ]


def _flag_names(job: Job) -> set[str]:
    return {f"--{parameter.name.replace('_', '-')}" for parameter in _parameters(job)}


def _options(kind: type[JobOptions], flags: dict[str, Any]) -> JobOptions:
    """Raises ValueError for values that are wrong or do not fit together."""
    since, start, end = (flags.pop(name) for name in ("since", "start", "end"))
    window_s = flags.pop("window", 60)
    if kind is WINDOWED:
        steps = {name: flags.pop(name) for name in STEPS}
        flags["steps"] = {name: share for name, share in steps.items() if share is not None}
    if bool(start) != bool(end):
        raise ValueError("--from and --to go together")
    if start:
        when = time_range.between(start, end, window_s)
    else:
        when = time_range.since(since, time.time_ns() // 1_000_000, window_s)
    return kind(when=when, recent=not start, password=password_of(os.environ), **flags)


class Terminated(SystemExit):
    """Raised on SIGTERM so that context managers exit and job_runs does not keep the run as running."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)

    def __str__(self) -> str:
        return "ended by SIGTERM"


def _require_spark(master: str) -> None:
    """Exits where the jobs cannot run. Raises ModuleNotFoundError without PySpark."""
    import pyspark

    version = pyspark.__version__
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if release < OLDEST_SPARK:
        raise _exit(f"the jobs need Spark 3.5 or newer: PySpark is {version}")
    if release < (4, 0) and find_spec("distutils") is None:
        raise _exit(f"PySpark {version} needs distutils, which Python 3.12 removed: use Python 3.11 or add setuptools")
    connect = [name for name in _CONNECT if os.environ.get(name, "").lower() not in ("", "classic")]
    if not hasattr(pyspark, "SparkContext"):
        connect.append("the package pyspark-client")
    if master.startswith("sc://"):
        connect.append(f"--master {master}")
    if connect:
        raise _exit(f"the jobs cannot use Spark Connect ({connect[0]}): their driver is that of spark-submit, or local")


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
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from exporters.clickhouse.errors import StoreError, StoreLoginError, advice
    from spark_jobs.session import JavaError

    try:
        yield
    except (PySparkException, Py4JError) as exc:
        if (missing := missing_on_executors(str(exc))) is None:
            raise  # a bug of ours, even if it is a ValueError
        raise _exit(missing) from exc
    except BrokenPipeError:
        raise  # of who reads the output; typer exits with 1
    except StoreLoginError as exc:
        raise _exit(f"{exc}; --url names the user, {PASSWORD} or {PASSWORD_FILE} gives the password") from exc
    except StoreError as exc:
        raise _exit(f"{exc}{advice(exc)}", EXIT_SOURCE) from exc
    except (ValueError, JavaError, OSError) as exc:
        raise _exit(str(exc)) from exc


def missing_on_executors(text: str) -> str | None:
    """What the executors' Python lacks, in one sentence, by what Spark reports; None if it reports something else."""
    if versions := _VERSIONS.search(text):
        worker, driver = (".".join(re.findall(r"\d+", version)) for version in versions.groups())
        return (
            f"the executors' Python is {worker} and the driver's {driver}: Spark needs the same, 3.11 or newer;"
            " set spark.pyspark.python, and in a container of the executors its image"
        )
    if python := _NO_PYTHON.search(text):
        return f"the executors have no {python[1]}: set spark.pyspark.python to their Python, 3.11 or newer"
    if module := _NO_MODULE.search(text):
        if module[1].partition(".")[0] in _OURS:
            return f"the executors' Python has no {module[1]}: pass Headroom's wheel by --py-files"
        return f"the executors' Python has no {module[1]}: {_INSTALL}"
    if package := _NO_PACKAGE.search(text):
        return f"the executors' Python has no {package[1]}: {_INSTALL}"
    return None


def _deliver(name: str, rows: list[dict[str, Any]], output: ReportFormat, path: Path | None) -> None:
    from spark_jobs.reports import REPORTS

    report, console = REPORTS[name], Console()
    if output is ReportFormat.TABLE and path is None and sys.stdout.isatty():
        for line in report.to_table(rows, console.width):
            console.print(line, soft_wrap=True)
    elif output is ReportFormat.TABLE:
        lines = "".join(f"{line.plain}\n" for line in report.to_table(rows, None))
        _write(lines.encode(errors="backslashreplace"), path)
    elif output is ReportFormat.PARQUET:
        _write(report.to_parquet(rows), path)
    elif output is ReportFormat.YAML:
        assert report.to_yaml is not None
        _write(report.to_yaml(rows).encode(), path)
        if path is not None:
            sys.stderr.write(f"next: headroom quotas plan -f {path} --bootstrap-server HOST:PORT\n")
    else:
        _write(report.to_json(rows) if output is ReportFormat.JSON else report.to_html(rows).encode(), path)


def _write(content: bytes, path: Path | None) -> None:
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        path.write_bytes(content)


def _exit(text: str, code: int = EXIT_CONFIGURATION) -> typer.Exit:
    """Prints one line on stderr; returns the exit to raise."""
    sys.stderr.write(f"headroom: {text}\n")
    return typer.Exit(code)


for _name in JOBS:
    add_job(app, _name, _name)
