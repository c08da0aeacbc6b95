"""Becomes a ClickHouse server: `python -m exporters.clickhouse.managed.launcher PARENT_PID PROGRAM CONFIG_FILE`.

PROGRAM is a `clickhouse` executable or the shared library of the chdb wheel. The wheel of chdb 3.7.2 contains the
complete server; its entry point is exported but undocumented, and requirements.txt pins the wheel by hash.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_SERVER_MAIN = "_Z25mainEntryClickHouseServeriPPc"  # int mainEntryClickHouseServer(int argc, char ** argv)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PROCESS_NAME = b"headroom-clickh"  # as `ps -o comm` shows it: at most 15 bytes
_NICENESS = 10  # clients that wait for an acknowledgement go first


def main(parent_pid: int, program: str, config_file: str) -> int:
    """Runs until the server ends. Replaces this process when `program` is an executable."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):  # Linux only; elsewhere the server survives a parent that is killed
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        libc.prctl(_PR_SET_NAME, _PROCESS_NAME)
    if os.getppid() != parent_pid:  # the parent died before prctl took effect
        return 1
    os.umask(0o077)
    os.nice(_NICENESS)
    # Linux may divide the CPU between sessions first; then niceness counts within a session only (sched(7),
    # autogroups). This process leads its session, so it lowers the session's priority, too.
    with contextlib.suppress(OSError):  # no autogroups
        Path("/proc/self/autogroup").write_text(str(_NICENESS))
    os.environ["CLICKHOUSE_WATCHDOG_ENABLE"] = "0"  # the watchdog forks, and its child would not die with the parent
    arguments = [f"--config-file={config_file}"]
    if not program.endswith(".so"):
        os.execv(program, ["clickhouse", "server", *arguments])  # noqa: S606 that is the point
    library = ctypes.CDLL(program, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
    argv = [os.fsencode(argument) for argument in ("clickhouse-server", *arguments)]
    return int(library[_SERVER_MAIN](len(argv), (ctypes.c_char_p * (len(argv) + 1))(*argv, None)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
