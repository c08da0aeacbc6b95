"""What the levels cost their neighbours: a second service over the same store, and frames on their way.

python -m tests.bench.quotas.neighbours [CLIENTS]

CPU of ClickHouse and of the services' computation in a minute of two services, beside that of the one of them which
computes. Then p99 of a frame of 200 B through the gateway while a process as that of the service computes levels
without a pause, beside the same while it is stopped, in turns.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from exporters.clickhouse.connection import PASSWORD, password_of
from headroom.server.process_limits import tune_for_batches
from headroom.server.processes.level_schedule import LevelSchedule
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.verdict.thresholds import Thresholds
from spark_jobs.clickhouse.source import clickhouse_of
from tests.bench.figure import tell
from tests.bench.frames import ONE, WARM_S, Generator, python_proxy
from tests.bench.kit.serve import cpu_s
from tests.bench.quotas.minutes import Rows, fill
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import now_ms

FLEET: Final = 2_000  # clients of the services
JUDGED: Final = 100_000  # clients while frames pass
MINUTES: Final = 3
MINUTE_S: Final = 60.0
STEP_S: Final = 0.5
NICENESS: Final = 10  # that of a background process of the service
ROUNDS: Final = 40
ROUND_S: Final = 0.4
QUIET_S: Final = 0.6  # until a query that runs when the computation is stopped has ended


def tell_services() -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory)) as server:
        rows = Rows(server, FLEET)
        rows.start()
        time.sleep(MINUTE_S)  # a minute to compute
        stores = [server.open_store().clickhouse for _ in range(2)]
        schedules = [
            LevelSchedule(store, LiveLevels(store, now_ms), f"service-{number}", lambda _: None, now_ms)
            for number, store in enumerate(stores)
        ]
        services_cpu_s(server, schedules, MINUTE_S)  # of their start
        first, second = services_cpu_s(server, schedules, MINUTES * MINUTE_S)
        rows.ended.set()
        rows.join()
    two, one = (first + second) / MINUTES, first / MINUTES
    tell(f"two_services_of_{FLEET}_clients", two, "cpu_s", two / one, f"one:{one:.2f}", digits=2)


def services_cpu_s(server: RunningClickHouse, schedules: Sequence[LevelSchedule], seconds: float) -> list[float]:
    """CPU of the server and of this process in the steps of each service, which come one after the other."""
    assert server.server.process is not None
    processes = (psutil.Process(server.server.process.pid), psutil.Process())
    spent, until_s = [0.0] * len(schedules), time.monotonic() + seconds
    while time.monotonic() < until_s:
        for number, schedule in enumerate(schedules):
            before = sum(map(cpu_s, processes))
            schedule.step()
            spent[number] += sum(map(cpu_s, processes)) - before
        time.sleep(STEP_S)
    return spent


def compute(url: str, minute_s: int) -> None:
    """In a process as that of the service, until it is killed."""
    os.nice(NICENESS)
    tune_for_batches()
    levels = LiveLevels(clickhouse_of(url, password_of(os.environ)), now_ms)
    while True:
        levels.compute_minute(minute_s, Thresholds())
        print("computed", flush=True)


def tell_latency(clients: int) -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory)) as server:
        minute_s = int(time.time()) // 60 * 60 - 60
        fill(server.store, minute_s, 60, clients, [])
        os.environ[PASSWORD] = server.writer.password
        load = Generator(tls=False)
        command = [sys.executable, "-m", "tests.bench.quotas.neighbours", server.writer.url, str(minute_s)]
        with (
            python_proxy("headroom", load, []) as proxy,
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as computing,
        ):
            assert computing.stdout is not None
            assert computing.stdout.readline(), "no level was computed"
            load.open(proxy.port, ONE)
            load.run(WARM_S)
            p99: dict[bool, list[float]] = {False: [], True: []}
            for number in range(2 * ROUNDS):
                is_computing = number % 2 == 1
                computing.send_signal(signal.SIGCONT if is_computing else signal.SIGSTOP)
                time.sleep(QUIET_S)
                p99[is_computing].append(load.run(ROUND_S)["p99_us"])
            computing.kill()
            load.stop()
    without, beside = (statistics.median(latencies) for latencies in p99.values())
    tell(f"frame_p99_beside_{clients}", beside, "us", beside / without, f"without:{without:.0f}", digits=0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        compute(sys.argv[1], int(sys.argv[2]))
    else:
        tell_services()
        tell_latency(int(sys.argv[1]) if len(sys.argv) > 1 else JUDGED)
