"""`headroom demo`: runs a real broker and sixteen real clients, and prints and writes the report of a minute."""

import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pyarrow.parquet as pq
from rich.console import Console

from headroom import interpreted
from headroom.demo.jars import LIBS_VARIABLE
from headroom.demo.job import run_job
from headroom.demo.processes import DemoError
from headroom.demo.scenario import Scenario, Tell
from spark_jobs.reports.headroom_report import to_table

REPORT = "headroom.json"
HTTP_PORT = 9644  # of the pages, as in the documentation

# Other HEADROOM_* variables are of a Headroom of the user's, whose store would get what the demo's clients send.
_OURS = (LIBS_VARIABLE, interpreted.VARIABLE)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEVELS = "SELECT client_id, level, reason FROM headroom_now"
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
    for name in [name for name in os.environ if name.upper().startswith("HEADROOM_") and name not in _OURS]:
        del os.environ[name]
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
                http, sql = scenario.serving.http, f"http://{scenario.serving.sql}"
                for line in (
                    f"open http://{http}/",
                    f"headroom top --http {http}",
                    f"headroom sql --url {sql} '{_LEVELS}'",
                    f"headroom job quota-headroom --url {sql} --since 5m",
                    f"headroom subscriptions list --bootstrap-server {scenario.serving.kafka}",
                ):
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
    try:  # the report of an earlier run goes
        output.mkdir(parents=True, exist_ok=True)
        for name in (REPORT, "report.html", "headroom.parquet"):
            (output / name).unlink(missing_ok=True)
        shutil.rmtree(output / "logs", ignore_errors=True)
    except OSError as exc:
        raise DemoError(f"cannot write to {output}: {exc.strerror}") from exc
    scenario.build()
    minute = scenario.measure()
    if not keep:
        scenario.quiet_down()
    tell("running the Spark job quota_headroom over the measured minute")
    run_job(scenario.serving.sql, minute.from_ms, minute.to_ms, output, scenario.directory / "job.log")
    rows = pq.read_table(output / "headroom.parquet").to_pylist()
    for shown in to_table(rows, console.width if sys.stdout.isatty() else None):
        console.print(shown, soft_wrap=True)
    tell(f"left in {output}/: {', '.join(sorted(file.name for file in output.iterdir()))}")
