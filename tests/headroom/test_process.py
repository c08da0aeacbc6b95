"""A process of Headroom: its core dumps and open files, calls that nobody waits for, what Python says by itself."""

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from headroom.config.settings import ServeConfig
from headroom.daemon_thread import in_daemon_thread
from headroom.logs import _unraisable


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True)
    return done.stdout


_FORBIDDEN = """
import ctypes, resource
from headroom.server.process_limits import forbid_core_dumps
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
forbid_core_dumps()
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, hard)
libc, get_dumpable = ctypes.CDLL(None), 3
assert not hasattr(libc, "prctl") or libc.prctl(get_dumpable) == 0
"""


def test_core_dumps_are_forbidden_unless_allowed() -> None:
    printed(_FORBIDDEN)
    assert ServeConfig().core_dumps is False


_RAISED = """
import resource
from headroom.server.process_limits import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
allow_open_files()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_soft_limit_is_raised_to_the_hard_limit() -> None:
    printed(_RAISED)


# As macOS has it: a hard limit of infinity, and a number beyond which raising the soft one is refused.
_OF_MACOS = """
import resource
from headroom.server import process_limits
limits, most = [256, resource.RLIM_INFINITY], {most}
def set_limit(kind, asked):
    if asked[0] == resource.RLIM_INFINITY or asked[0] > most:
        raise {error}
    limits[:] = asked
resource.getrlimit, resource.setrlimit = lambda kind: tuple(limits), set_limit
process_limits.allow_open_files()
print(*limits, process_limits.open_files())
"""


@pytest.mark.parametrize(
    ("most", "raised"), [(10_240, 8_192), (61_440, 32_768), (1 << 20, 1 << 20), (256, 256), (300, 256)]
)
@pytest.mark.parametrize("error", ["ValueError('current limit exceeds maximum limit')", "OSError(22, 'no')"])
def test_a_limit_that_cannot_be_had_is_replaced_by_one_that_can(most: int, raised: int, error: str) -> None:
    soft, _, files = printed(_OF_MACOS.format(most=most, error=error)).split()
    assert (int(soft), int(files)) == (raised, raised)


def test_no_limit_is_room_for_many() -> None:
    program = "import resource; from headroom.server.process_limits import open_files\n"
    program += "resource.getrlimit = lambda kind: (resource.RLIM_INFINITY,) * 2; print(open_files())"
    assert int(printed(program)) == 1 << 20


FROZEN = """
import asyncio, threading
from headroom.daemon_thread import in_daemon_thread

async def main():
    try:
        await asyncio.wait_for(in_daemon_thread(threading.Event().wait), 0.1)
    except TimeoutError:
        print("cancelled", flush=True)

asyncio.run(main())
"""


def test_result_and_exception_of_the_call_arrive_where_it_is_awaited() -> None:
    assert asyncio.run(in_daemon_thread(lambda: threading.current_thread().daemon))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_daemon_thread(lambda: 1 / 0))


def test_loop_and_process_end_while_a_cancelled_call_blocks_forever() -> None:
    ended = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("cancelled\n", "")


def test_call_that_returns_after_its_loop_was_closed_is_ignored(recwarn: pytest.WarningsRecorder) -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    def call() -> None:
        threads.append(threading.current_thread())
        release.wait()

    async def cancelled() -> None:
        waiting = asyncio.ensure_future(in_daemon_thread(call))
        while not threads:
            await asyncio.sleep(0.001)
        waiting.cancel()

    asyncio.run(cancelled())
    release.set()
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert not recwarn.list  # pytest warns of exceptions in threads


def reported(error: BaseException, where: object) -> list[dict[str, object]]:
    with capture_logs() as entries:
        _unraisable(SimpleNamespace(exc_value=error, object=where))  # as the hook gets it
    return [dict(entry) for entry in entries]


def test_undecodable_server_name_is_not_logged() -> None:
    try:
        b"gatew\xaby".decode("ascii")
    except UnicodeDecodeError as exc:
        assert reported(exc, b"gatew\xaby") == []


def test_other_unraisable_exceptions_are_logged() -> None:
    (entry,) = reported(RuntimeError("x"), sys)
    assert entry["error"] == "RuntimeError('x')"
