"""headroom/server/processes/child_supervisor.py: one supervisor for every kind of child process."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headroom.server.processes.child_supervisor import ChildError, ChildProcess, ChildValues
from headroom.server.processes.messages import Message

PATIENCE_S = 60.0
HEAD = "import json, os, sys, time\nfirst = json.loads(sys.stdin.readline())\n"
SAY = "def say(**message): print(json.dumps(message), flush=True)\n"
UNTIL_STOP = "for line in sys.stdin:\n    if 'stop' in line: break\n"


def scripted(script: str, **values: Any) -> ChildValues:
    return ChildValues("the process", (sys.executable, "-c", HEAD + SAY + script), **values)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():
            await asyncio.sleep(0.01)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_messages_pass_both_ways_and_stop_ends_it() -> None:
    heard: list[Message] = []

    async def scenario() -> None:
        script = "say(ready=True, got=first)\n" + UNTIL_STOP + "say(last=line)\n"
        child = ChildProcess(scripted(script), first=lambda: {"number": 7}, heard=heard.append)
        await child.start()
        assert child.alive
        watching = asyncio.create_task(child.watch())
        assert await child.stop(PATIENCE_S)
        await watching
        assert (child.alive, child.restarts) == (False, 0)

    run(scenario)
    assert heard == [{"ready": True, "got": {"number": 7}}, {"last": '{"stop":true}\n'}]


def test_dead_process_is_restarted_with_its_first_message_until_a_start_succeeds() -> None:
    numbers, ended = itertools.count(), list[int]()

    async def scenario() -> None:
        script = "if first['n'] in (1, 2): sys.exit(1)\nsay(ready=True)\nif first['n'] == 0: os._exit(3)\n" + UNTIL_STOP
        child = ChildProcess(
            scripted(script, restart_after_s=0.01), first=lambda: {"n": next(numbers)}, ended=lambda: ended.append(1)
        )
        watching = asyncio.create_task(child.watch())  # starts it, too
        await until(lambda: child.alive and child.restarts == 1)
        assert (ended, next(numbers)) == ([1], 4)
        assert await child.stop(PATIENCE_S)
        await watching

    run(scenario)
    assert ended == [1, 1]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("say(error='no room'); sys.exit(1)", "no room"),
        ("sys.exit(4)", "the process ended with code 4: asked 4"),
        ("time.sleep(60)", "the process was not ready within 0 s"),
    ],
)
def test_process_that_does_not_start_is_an_error(script: str, message: str) -> None:
    async def scenario() -> None:
        timeout_s = 0.3 if "sleep" in script else PATIENCE_S
        child = ChildProcess(scripted(script, start_timeout_s=timeout_s, cause=lambda code: f"asked {code}"))
        with pytest.raises(ChildError) as failed:
            await child.start()
        assert str(failed.value) == message
        assert not child.alive

    run(scenario)


def test_program_that_does_not_exist_is_an_error() -> None:
    async def scenario() -> None:
        with pytest.raises(ChildError, match="cannot start the process: No such file"):
            await ChildProcess(ChildValues("the process", ("/nowhere/at/all",))).start()

    run(scenario)


def test_silent_process_is_killed() -> None:
    async def scenario() -> None:
        child = ChildProcess(scripted("say(ready=True)\ntime.sleep(60)", silent_s=2.0, restart_after_s=0.01))
        await child.start()
        watching = asyncio.create_task(child.watch())
        await until(lambda: child.restarts == 1)
        await child.stop(0.1)
        await watching

    run(scenario)


def test_process_is_not_killed_when_the_event_loop_is_busy() -> None:
    async def scenario() -> None:
        script = "say(ready=True)\nwhile True:\n    say(tick=1)\n    time.sleep(0.05)\n"
        heard: list[Message] = []
        child = ChildProcess(scripted(script, silent_s=3.0), heard=heard.append)
        await child.start()
        watching = asyncio.create_task(child.watch())
        time.sleep(4.0)  # noqa: ASYNC251 - blocks the loop for longer than the limit
        before = len(heard)
        await until(lambda: len(heard) > before)
        assert child.restarts == 0
        assert not await child.stop(0.1)  # it ignores the request, and is killed
        await watching

    run(scenario)


def test_process_without_messages_is_ready_when_it_answers_and_stops_by_sigterm(tmp_path: Path) -> None:
    mark, output = tmp_path / "mark", tmp_path / "output"

    async def scenario() -> None:
        argv = (
            sys.executable,
            "-c",
            f"import time\nprint('said', flush=True)\nopen({str(mark)!r}, 'w')\ntime.sleep(60)",
        )
        child = ChildProcess(ChildValues("the server", argv, answers=mark.exists, output=output))
        await child.start()
        watching = asyncio.create_task(child.watch())
        assert await child.stop(PATIENCE_S)
        await watching

    run(scenario)
    assert output.read_text() == "said\n"
