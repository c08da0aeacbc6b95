"""Child processes end with their parent, and have none of the settings of a Headroom of the user's."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from headroom.demo.processes import complaint, first_line, start, stop
from tests.kit.serving import eventually

# Prints the pid of a child that it starts, then both wait.
PARENT = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); input()"
# Starts a child with `start`, prints its pid and waits to be killed.
STARTER = """
import subprocess
from headroom.demo.processes import start
print(start(["sleep", "60"], stderr=subprocess.DEVNULL).pid, flush=True)
input()
"""
# Prints what a child of the demo has of these variables.
DEMO = """
import os
from pathlib import Path
from headroom.demo import run
run.Scenario = lambda *_, **__: os.execvp("env", ["env"])
run.run_demo(Path("unused"))
"""


def python(code: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return start([sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=pipe, stdin=pipe)


def has_ended(pid: int) -> bool:
    """A zombie has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_stop_ends_the_process_and_its_children() -> None:
    process = python(PARENT)
    grandchild = int(first_line(process, 10))
    assert stop(process) == -signal.SIGTERM
    eventually(partial(has_ended, grandchild), bool)


def test_process_that_ignores_sigterm_is_killed() -> None:
    process = python(DEAF)
    assert first_line(process, 10) == "deaf"
    process.send_signal(signal.SIGTERM)
    assert stop(process, grace_s=0.1) in (-signal.SIGKILL, 1)  # 1: input() reached the end of stdin


def test_children_end_with_their_parent() -> None:
    us = python(STARTER)
    child = int(first_line(us, 10))
    us.kill()
    us.wait()
    eventually(partial(has_ended, child), bool)


def test_the_demo_s_processes_have_no_setting_of_another_headroom() -> None:
    settings = dict.fromkeys(("HEADROOM_CLICKHOUSE", "HEADROOM_SPOOL__FSYNC", "headroom_http"), "theirs")
    kept = {"HEADROOM_PURE": "1", "HEADROOM_KAFKA_LIBS": "/libs", "HTTPS_PROXY": "http://proxy:3128"}
    done = subprocess.run(
        [sys.executable, "-c", DEMO], env=os.environ | settings | kept, capture_output=True, check=True
    )
    has = dict(line.split("=", 1) for line in done.stdout.decode().splitlines() if "=" in line)
    assert has.keys() & settings.keys() == set()
    assert has.items() >= kept.items()


def test_first_line_times_out() -> None:
    process = python("input()")
    assert first_line(process, 0.01) == ""
    stop(process)


def test_complaint_selects_the_most_informative_line(tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    assert complaint(log) == "it said nothing"
    log.write_text("java.net.BindException: Address already in use\n\tat a.b.c\n\t... 3 more\nshutting down\n\n")
    assert complaint(log) == "java.net.BindException: Address already in use"
    log.write_text("one\ntwo\n\n")
    assert complaint(log) == "two"
