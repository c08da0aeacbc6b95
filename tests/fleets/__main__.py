"""python -m tests.fleets [CASES [SEED]]: fleets drawn at random, every path against the reference second by second.

Prints the first differences and ends with `fleets cases=N differences=M`; exits with 1 if there are any."""

import sys
import tempfile
from pathlib import Path

from spark_jobs.session import session
from tests.fleets.differences import compared
from tests.kit.clickhouse import running_clickhouse

CASES, SEED, SHOWN = 2000, 1, 20


def main() -> None:
    cases, seed = (*(int(part) for part in sys.argv[1:3]), *(CASES, SEED)[len(sys.argv) - 1 :])
    with (
        tempfile.TemporaryDirectory() as directory,
        running_clickhouse(Path(directory)) as clickhouse,
        session("fleets"),
    ):
        found = compared(clickhouse, seed, cases)
    for difference in found[:SHOWN]:
        print(*difference)
    print(f"fleets cases={cases} differences={len(found)}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
