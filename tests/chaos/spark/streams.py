"""kill -9 of quota-headroom --stream while rows arrive, a part of them late.

    python -m tests.chaos.spark.streams [SEED KILLS]

Before each kill a minute of rows arrives, and the late rows of the minute before; with every fifth also late rows of
hours ago. The stream is started over the newest minute and is killed, with its JVM and workers, at a random moment of
the time that an undisturbed one takes, half of the kills after the first rows are staged. In the end the published rows
must equal those of one run over all rows that nobody disturbed.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.jobs import FILL, LIMIT, ROWS, ROWS_OF_A_MINUTE, START, read, write
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse

IN_TIME, LATE = 1, 2
MINUTE_MS = 60_000
HOURS_AGO_MS = 2 * 3_600_000
OFTEN = 5
_WAIT_S = 300.0
_POLL_S = 0.02
_PUBLISHING_S = 1.0  # how long after the first staged rows a kill may come
_STAGED = """
SELECT count() FROM headroom.quota_utilization_staging
WHERE cluster = {cluster:String} AND staged_at >= fromUnixTimestamp({since_s:Int64})"""


class Stream:
    """A cluster of rows and the job over it."""

    def __init__(self, clickhouse: RunningClickHouse, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._clickhouse = clickhouse
        self._command = [sys.executable, "-m", "headroom", "job", "quota-headroom", "--url", clickhouse.url]
        write(clickhouse, LIMIT, cluster=name, from_s=(START - 2 * HOURS_AGO_MS) // 1000)

    def arrive(self, minute: int, parts: int, start_ms: int = START) -> None:
        bounds = {"first": minute * ROWS_OF_A_MINUTE, "rows": ROWS_OF_A_MINUTE, "parts": parts}
        write(self._clickhouse, FILL, cluster=self.name, start=start_ms, **bounds)

    def start(self, from_ms: int, to_ms: int, *more: str) -> subprocess.Popen[bytes]:
        between = ["--cluster", self.name, f"--from={from_ms // 1000}", f"--to={to_ms // 1000}", "--stream"]
        with self.log.open("ab") as log:
            return subprocess.Popen([*self._command, *between, *more], stdout=log, stderr=log, start_new_session=True)

    def once(self, from_ms: int, to_ms: int) -> None:
        """Computes the range, and what late rows change before it. Raises AssertionError when it fails."""
        with self.start(from_ms, to_ms, "--once") as process:
            code = process.wait(_WAIT_S)
        assert code == 0, self.log.read_text(errors="replace")[-4000:]

    def killed(self, minute: int, after_s: float, *, staged: bool) -> None:
        """Runs over a minute until it is killed, `after_s` from its start or from its first staged rows."""
        since_s = int(time.time()) + 1  # a second later, because runs that were killed leave rows
        from_ms = START + minute * MINUTE_MS
        with self.start(from_ms, from_ms + MINUTE_MS) as process:
            deadline = time.monotonic() + _WAIT_S
            while staged and process.poll() is None and not self._staged(since_s) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(after_s)
            assert process.poll() is None, self.log.read_text(errors="replace")[-4000:]
            os.killpg(process.pid, signal.SIGKILL)

    def rows(self) -> list[str]:
        return [repr(row) for row in read(self._clickhouse, ROWS, cluster=self.name)]

    def _staged(self, since_s: int) -> int:
        return int(read(self._clickhouse, _STAGED, cluster=self.name, since_s=since_s)[0][0])


def chaos(clickhouse: RunningClickHouse, directory: Path, seed: int, kills: int) -> bool:
    """Whether the stream that was killed published the rows of the one that was not."""
    drawn, begun_s = random.Random(seed), time.monotonic()
    killed, calm = (Stream(clickhouse, name, directory) for name in ("killed", "calm"))
    for minute in range(kills):
        calm.arrive(minute, IN_TIME | LATE)
        if minute % OFTEN == 0:
            calm.arrive(minute, LATE, START - HOURS_AGO_MS)
    started_s = time.monotonic()
    end_ms = START + kills * MINUTE_MS
    calm.once(START - HOURS_AGO_MS, end_ms)
    took_s = time.monotonic() - started_s
    print(f"undisturbed: {took_s:.0f} s", flush=True)
    killed.arrive(0, LATE, START - HOURS_AGO_MS)
    killed.once(START - HOURS_AGO_MS, START)  # the stream has run before
    for minute in range(kills):
        killed.arrive(minute, IN_TIME)
        if minute:
            killed.arrive(minute - 1, LATE)
        if minute and minute % OFTEN == 0:
            killed.arrive(minute, LATE, START - HOURS_AGO_MS)
        staged = drawn.random() < 0.5
        after_s = drawn.uniform(0, _PUBLISHING_S) if staged else drawn.uniform(0.05, 1.0) * took_s
        killed.killed(minute, after_s, staged=staged)
        since = "the first staged rows" if staged else "the start"
        print(f"{minute + 1}/{kills}: {after_s:.1f} s after {since}; {time.monotonic() - begun_s:.0f} s", flush=True)
    killed.arrive(kills - 1, LATE)
    killed.once(end_ms - MINUTE_MS, end_ms)
    expected, found = Counter(calm.rows()), Counter(killed.rows())
    lost, other = (expected - found).total(), (found - expected).total()
    print(f"chaos-streams seed={seed} kills={kills} rows={expected.total()} lost={lost} other={other}")
    return expected.total() > 0 and not lost and not other


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what this process has started
    seed, kills = (int(part) for part in sys.argv[1:3]) if len(sys.argv) > 2 else (1, 20)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_clickhouse(Path(scratch) / "data") as clickhouse,
    ):
        return 0 if chaos(clickhouse, Path(scratch), seed, kills) else 1


if __name__ == "__main__":
    sys.exit(main())
