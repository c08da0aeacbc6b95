"""Runs the fuzz targets for a few seconds without findings, and checks that a planted fault is reported."""

import random
import subprocess
import sys

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.targets import Targets


@pytest.mark.slow
def test_short_fuzz_run_finds_no_crashes() -> None:
    reported = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "7", "4"], capture_output=True, text=True, timeout=400
    )
    assert reported.returncode == 0, reported.stdout[-3000:] + reported.stderr[-3000:]
    assert reported.stdout.splitlines()[-1].startswith("fuzz inputs=")
    assert " crashes=0 " in reported.stdout


def test_undocumented_exception_is_reported_as_a_crash(capsys: pytest.CaptureFixture[str]) -> None:
    source = random.Random(1)
    targets = Targets(source)

    def broken(_: bytes) -> None:
        raise IndexError("out of range")

    targets.by_name = {"broken": (broken, [b"seed"])}
    fuzz.throw(source, targets, 3)
    assert '"crash": "broken"' in capsys.readouterr().out
