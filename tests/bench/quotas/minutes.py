"""What the levels of a minute cost, and how soon a throttled client is shown.

python -m tests.bench.quotas.minutes [CLIENTS ...]

CPU of ClickHouse and of the computation together, for a minute with a row a second and client, beside one plain GROUP
BY of the same rows on the same server; and for a minute with the last 60 seconds as often as they are computed in it.
Then of `headroom serve`: from the end of a client's first throttled second until `/api/v1/headroom` says `throttled`.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import httpx
import psutil

from headroom.server.process_limits import tune_for_batches
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.verdict.thresholds import Thresholds
from tests.bench.figure import tell
from tests.bench.kit.serve import cpu_s
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.levels import now_ms
from tests.kit.serving import Served

SIZES: Final = (0, 10_000, 100_000)
FLEETS: Final = (16, 10_000)  # of the live surface
THROTTLED: Final = 15  # clients, one after the other
APART_S: Final = 7.3  # so that they begin at all phases of `levels.every_ms`
STORED_AFTER_S: Final = 1.0  # as the gateway's rows are
PATIENCE_S: Final = 120.0
EVERY_S: Final = 10.0  # how often the last 60 seconds are computed (headroom/server/processes/level_schedule.py)
PAUSES: Final = 8  # multiples of their time
ROUNDS: Final = 3

# A client whose number is in `throttled` is muted for 0.9 s of the second.
_ROWS = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, limit, limit_known, matched_entity, bucket_user,
    bucket_client_id, muted_ms, received_at)
SELECT 'bench', 'producer_byte_rate', toDateTime64({from_s:Int64} + second, 3),
    concat('user-', toString(client % 1000)), concat('client-', toString(client)), '', 1 + client % 3, 1000,
    500 + client % 400 + second, if(is_throttled, 900, 0), is_throttled, 'gateway', 'gw', 1000, 1000 + client % 7, 1,
    concat('client-id=client-', toString(client)), '', concat('client-', toString(client)),
    if(is_throttled, 900, 0), now64(3)
FROM (
    SELECT number % greatest({clients:UInt32}, 1) AS client, intDiv(number, greatest({clients:UInt32}, 1)) AS second,
           has({throttled:Array(UInt32)}, client) AS is_throttled
    FROM numbers({clients:UInt32} * {seconds:UInt32})
)
"""
_PLAIN = """
SELECT cluster, source, quota_key, user, client_id, broker_id, gateway_id, limit_known, `limit`, matched_entity,
       avgResample(0, 60, 1)(rate, toSecond(ts)) AS rates, sum(bytes), max(throttle_ms), sum(muted_ms)
FROM headroom.quota_usage_recent WHERE minute = toDateTime({from_s:Int64})
GROUP BY ALL
"""


def fill(store: QueriedStore, from_s: int, seconds: int, clients: int, throttled: list[int]) -> None:
    parameters = {"from_s": from_s, "seconds": seconds, "clients": clients, "throttled": throttled}
    store.command(_ROWS, parameters)


def tell_cost(clients: int) -> None:
    """The median of minutes that are computed once each, with a memory of those before."""
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory)) as server:
        starts_s = [int(time.time()) // 60 * 60 - 60 * ago for ago in range(ROUNDS + 2, 0, -1)]
        for start_s in starts_s:
            fill(server.store, start_s, 60, clients, [])
        levels = LiveLevels(server.store.clickhouse, now_ms)
        for start_s in starts_s[:2]:
            levels.compute_minute(start_s, Thresholds())
        assert server.server.process is not None
        processes = (psutil.Process(server.server.process.pid), psutil.Process())
        computed, plain, in_all = [], [], []
        for start_s in starts_s[2:]:
            spent_s = -1.0
            while (server_s := cpu_s(processes[0])) > spent_s + 0.1:  # merges of what was filled
                spent_s = server_s
                time.sleep(2)
            before = sum(map(cpu_s, processes))
            server.store.clickhouse.table(_PLAIN, {"from_s": start_s})
            between = sum(map(cpu_s, processes))
            levels.compute_minute(start_s, Thresholds())
            plain.append(between - before)
            ended, began_s = sum(map(cpu_s, processes)), time.monotonic()
            computed.append(ended - between)
            levels.compute_last(1000 * (start_s - 30), Thresholds())
            times = 60 / max(EVERY_S, PAUSES * (time.monotonic() - began_s))
            in_all.append(computed[-1] + times * (sum(map(cpu_s, processes)) - ended))
        took_s, in_all_s = statistics.median(computed), statistics.median(in_all)
        tell(f"minute_of_{clients}", took_s, "cpu_s", took_s / statistics.median(plain), "plain_GROUP_BY", digits=2)
        tell(f"levels_in_a_minute_of_{clients}", in_all_s, "cpu_s", in_all_s / took_s, "the_minute_alone", digits=2)


class Rows(threading.Thread):
    """A row for each client and second, stored a second later; more and more clients are throttled."""

    def __init__(self, server: RunningClickHouse, clients: int) -> None:
        super().__init__(daemon=True)
        self.first_throttled_s: dict[int, int] = {}  # the second after which a client has been throttled
        self._store, self._clients = server.open_store(), clients
        self.ended = threading.Event()

    def run(self) -> None:
        began_s = second = int(time.time())
        while not self.ended.is_set():
            time.sleep(max(second + 1 + STORED_AFTER_S - time.time(), 0))
            throttled = list(range(1, 1 + min(int((second - began_s - 60) // APART_S), THROTTLED)))
            fill(self._store, second, 1, self._clients, throttled)
            for client in throttled:
                self.first_throttled_s.setdefault(client, second + 1)
            second += 1


def tell_age(clients: int) -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        os.environ["HEADROOM_CLICKHOUSE_PASSWORD"] = server.writer.password
        rows = Rows(server, clients)
        with (
            Served(Path(directory), "--clickhouse", server.writer.url) as served,
            httpx.Client(base_url=f"http://{served.http}", timeout=60) as browser,
        ):
            rows.start()
            ages: dict[int, float] = {}
            deadline = time.monotonic() + 60 + THROTTLED * APART_S + PATIENCE_S
            while len(ages) < THROTTLED and time.monotonic() < deadline:
                for row in browser.get("/api/v1/headroom?level=throttled").json():
                    number = int(row["client_id"].removeprefix("client-"))
                    ages.setdefault(number, time.time() - rows.first_throttled_s[number])
                time.sleep(0.25)
            rows.ended.set()
            rows.join()
        assert len(ages) == THROTTLED, f"{THROTTLED - len(ages)} throttled clients were not shown"
        p50, p95 = statistics.median(ages.values()), statistics.quantiles(ages.values(), n=20, method="inclusive")[-1]
        tell(f"throttled_shown_of_{clients}_p95", p95, "s", p95 / p50, "p50")


def main(sizes: tuple[int, ...]) -> None:
    tune_for_batches()
    for clients in sizes:
        tell_cost(clients)
    for clients in FLEETS:
        tell_age(clients)


if __name__ == "__main__":
    main(tuple(int(argument) for argument in sys.argv[1:]) or SIZES)
