"""`make fuzz`: hostile bytes in a child process. Ends with `fuzz inputs=N crashes=M max_rss_mib=R`.

The child runs inputs until its time is over. A finding is reported with the seed that reproduces it, and a new child
continues after it. A child process is used because native code can abort it.
"""

import faulthandler
import json
import logging
import random
import resource
import subprocess
import sys
import time
import traceback

import structlog

from tests.fuzz.seeds import mutated
from tests.fuzz.targets import Targets

ROUND = 200  # inputs per random seed: repeated to reproduce a finding
HANG_S = 30
MAX_CHILDREN = 50


def child(seed: int, first_round: int, seconds: float) -> None:
    """Prints a line of JSON per round that ended, and one per finding."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    faulthandler.enable()
    deadline = time.monotonic() + seconds
    number = first_round
    while time.monotonic() < deadline:
        source = random.Random(f"{seed}-{number}")
        targets = Targets(source)
        print(json.dumps({"begun": number}), flush=True)
        for _ in range(ROUND):
            throw(source, targets, number)
        rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"inputs": ROUND, "rss_mib": rss_mib}), flush=True)
        number += 1


def throw(source: random.Random, targets: Targets, number: int) -> None:
    name = source.choice(list(targets.by_name))
    target, seeds = targets.by_name[name]
    whole = b"".join(source.choices(seeds, k=source.randint(1, 3)))
    data = source.randbytes(source.randint(0, 200)) if source.random() < 0.1 else mutated(source, whole, seeds)
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(HANG_S, exit=True, file=sys.__stderr__)
    try:
        target(data)
    except Exception:  # noqa: BLE001 - a finding, whatever it is
        found = {"crash": name, "round": number, "input": data.hex()[:400], "why": traceback.format_exc(limit=-4)}
        print(json.dumps(found), flush=True)
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(seed: int, seconds: float) -> int:
    inputs = crashes = children = 0
    rss_mib, next_round = 0.0, 0
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and children < MAX_CHILDREN:
        children += 1
        command = [sys.executable, "-m", "tests.fuzz", str(seed), str(left), str(next_round)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                reported = json.loads(line)
                next_round = reported.get("begun", next_round)
                inputs += reported.get("inputs", 0)
                rss_mib = max(rss_mib, reported.get("rss_mib", 0.0))
                if "crash" in reported:
                    crashes += 1
                    print(
                        f"finding: {reported['crash']}, SEED={seed} round {reported['round']}\n"
                        f"{reported['why']}{reported['input']}"
                    )
        if process.returncode:
            crashes += 1
            print(f"finding: the process ended with {process.returncode}, SEED={seed} round {next_round}")
        next_round += 1
    print(f"fuzz inputs={inputs} crashes={crashes} max_rss_mib={rss_mib:.0f}")
    return 1 if crashes or not inputs else 0


if __name__ == "__main__":
    if len(sys.argv) == 4:
        child(int(sys.argv[1]), int(sys.argv[3]), float(sys.argv[2]))
    else:
        sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
