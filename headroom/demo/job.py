"""The Spark job and its report in a separate process, so that everything Spark starts ends with it."""

import subprocess
import sys
from pathlib import Path

from headroom.demo.processes import DemoError, complaint, start, stop

TIMEOUT_S = 180.0


def run_job(sql: str, from_ms: int, to_ms: int, output: Path, log: Path) -> None:
    """Runs quota_headroom over the window [from_ms, to_ms) and writes its report to `output`. Raises DemoError."""
    argv = [sys.executable, "-P", "-m", "headroom.demo.job", f"http://{sql}", str(from_ms), str(to_ms), str(output)]
    with log.open("ab") as file:
        process = start(argv, stderr=file)
    try:
        status = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DemoError(f"the Spark job did not end in {TIMEOUT_S:.0f} s: {complaint(log)}") from None
    finally:
        stop(process, grace_s=0.0)  # Spark shuts down slowly, and there is nothing to save
    if status:
        raise DemoError(f"the Spark job failed: {complaint(log)}")


def main(url: str, from_ms: int, to_ms: int, output: Path) -> None:
    from spark_jobs.jobs import quota_headroom
    from spark_jobs.options import HeadroomOptions
    from spark_jobs.reports import headroom_report
    from spark_jobs.time_range import TimeRange

    when = TimeRange(from_ms, to_ms, (to_ms - from_ms) // 1000)  # one window
    headroom_report.write(quota_headroom.run(HeadroomOptions(url, when)).rows, output)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
