"""A fleet of polite clients and three hostile ones before one gateway: what do the polite ones lose, how late are they?

Each client has an address of its own, which pays when nobody is authenticated. Polite clients push one point with an
own number and produce once in an interval. Each hostile one sends what a legal client may send, as fast as it is
answered or as often as its attack says:

- a new instance id for each push, with 50,000 points in some hundred bytes of zstd;
- 390 client ids of 32 kB, a tiny produce each, every 8 seconds;
- 391 long and 1,500 short client ids, a tiny produce each, every 3 seconds.

`python -m tests.attack.fleet SECONDS POLITE` has all three at once for SECONDS, then each alone, and ends with a line
for each attack: what was sent, what its polite neighbours lost, how late they became, what the health page said. It
exits with 1 when a polite client lost something or was late, or when the page Status named not all three.
"""

import asyncio
import json
import re
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from tests.chaos.load import metrics_data
from tests.chaos.wire import WireClient
from tests.kit.serving import Served, config_file, page, rows
from tests.kit.telemetry_requests import subscription_id
from tests.kit.wire import Subscription

POINTS = 50_000
PUSH_INTERVAL_MS = 10_000
LONG = "x" * 32_000
SETTLE_S = 60.0  # for the last rows to be stored
ALONE_S, ALONE_POLITE = 30, 100  # a run of one attack
MAX_P99_S = 10.0
ZSTD = 4
ATTACKS = (
    ("a new instance id for each push", "127.2.0.1"),
    ("390 client ids of 32 kB every 8 s", "127.2.0.2"),
    ("391 long and 1,500 short client ids every 3 s", "127.2.0.3"),
)


@dataclass
class Polite:
    name: str
    sent_s: list[float] = field(default_factory=list)  # by the number that was acknowledged
    seen_s: list[float] = field(default_factory=list)  # when the number was first seen in the store
    produced_bytes: int = 0
    refused: int = 0


@dataclass
class Hostile:
    attack: str
    address: str
    requests: int = 0
    nbytes: int = 0
    refused: int = 0


class Fleet:
    """The clients of one run. `served`: a gateway whose clients push every 10 s. `attacks`: of ATTACKS, by number."""

    def __init__(self, served: Served, polite: int, attacks: Sequence[int] = (0, 1, 2)) -> None:
        self._served = served
        self._host, self._port = served.address
        self._named = f"polite-{''.join(map(str, attacks))}-"
        self._attacks = attacks
        self.polite = [Polite(f"{self._named}{n:05d}") for n in range(polite)]
        self.hostile = [Hostile(*ATTACKS[n]) for n in attacks]
        self.said: Counter[str] = Counter()  # lines of /readyz?verbose without numbers, and how often they were said
        self._ends_at = 0.0

    async def run(self, seconds: float) -> None:
        """All clients for so long; then until everything is stored, or a minute has passed."""
        self._ends_at = time.monotonic() + seconds
        short = [f"short-{n}" for n in range(1_500)]
        attacks = (
            self._new_instances,
            partial(self._many_ids, client_ids=[f"{LONG}{n}" for n in range(390)], every_s=8.0),
            partial(self._many_ids, client_ids=[*(f"{LONG}-{n}" for n in range(391)), *short], every_s=3.0),
        )
        tasks = [
            *(self._be_polite(n, one) for n, one in enumerate(self.polite)),
            *(attacks[number](one) for number, one in zip(self._attacks, self.hostile, strict=True)),
        ]
        watch = asyncio.create_task(self._watch())
        await asyncio.gather(*(asyncio.create_task(task) for task in tasks))
        deadline = time.monotonic() + SETTLE_S
        while await asyncio.to_thread(self.is_missing) and time.monotonic() < deadline and not watch.done():
            await asyncio.sleep(0.5)
        if not watch.cancel():
            watch.result()  # raises what ended it

    def is_missing(self) -> bool:
        """Whether acknowledged points or the usage of a produce are not stored."""
        return any(len(one.sent_s) > len(one.seen_s) for one in self.polite) or self.unmetered_bytes() > 0

    def delays_s(self) -> list[float]:
        """How long each point took until it could be read, at most."""
        return sorted(seen - sent for one in self.polite for sent, seen in zip(one.sent_s, one.seen_s, strict=False))

    def unmetered_bytes(self) -> int:
        """Of the polite clients' produces, after the run."""
        found = dict(
            rows(
                self._served.sql,
                "SELECT client_id, sum(bytes) FROM headroom.quota_usage FINAL"
                f" WHERE quota_key = 'producer_byte_rate' AND client_id LIKE '{self._named}%' GROUP BY client_id",
            )
        )
        return sum(max(0, one.produced_bytes - int(found.get(one.name, 0))) for one in self.polite)

    @property
    def stored_sql(self) -> str:
        return (
            f"SELECT client_id, count() FROM headroom.client_metrics WHERE client_id LIKE '{self._named}%'"
            " GROUP BY client_id"
        )

    async def _be_polite(self, number: int, one: Polite) -> None:
        source = f"127.1.{number // 250}.{number % 250 + 1}"
        await asyncio.sleep(number % 1_000 / 1_000 * PUSH_INTERVAL_MS / 1_000)
        client = await WireClient.connect(self._host, self._port, one.name, source)
        to = await client.subscription(bytes(16))
        while time.monotonic() < self._ends_at:
            sent_s, payload = time.time(), metrics_data([len(one.sent_s)], time.time_ns(), b"")
            if await client.push(to, ZSTD, zstandard.compress(payload)) == 0:
                one.sent_s.append(sent_s)
            else:
                one.refused += 1
            one.produced_bytes += await client.produce()
            await asyncio.sleep(to.interval_ms / 1_000)
        client.close()

    async def _new_instances(self, one: Hostile) -> None:
        data = MetricsData.FromString(metrics_data([0], 1, b""))
        [metric] = data.resource_metrics[0].scope_metrics[0].metrics
        for _ in range(POINTS - 1):
            metric.gauge.data_points.add()
        payload = zstandard.compress(data.SerializeToString(), 19)  # equal points of one series: some hundred bytes
        client = await WireClient.connect(self._host, self._port, "hostile", one.address)
        while time.monotonic() < self._ends_at:
            instance_id = uuid.uuid4().bytes
            to = Subscription(0, instance_id, subscription_id(["*"], PUSH_INTERVAL_MS, instance_id), 0)
            one.refused += await client.push(to, ZSTD, payload) != 0
            one.requests += 1
            one.nbytes += len(payload) + 60
        client.close()

    async def _many_ids(self, one: Hostile, client_ids: Iterable[str], every_s: float) -> None:
        client = await WireClient.connect(self._host, self._port, "hostile", one.address)
        while (began := time.monotonic()) < self._ends_at:
            for client_id in client_ids:
                one.nbytes += await client.produce(client_id)
                one.requests += 1
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))
        client.close()

    async def _watch(self) -> None:
        """Looks into the store and at the health page each second."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(1.0)

    def _look(self) -> None:
        latest = rows(
            self._served.sql,
            "SELECT client_id, toUInt32(max(value)) + 1 FROM headroom.client_metrics"
            f" WHERE client_id LIKE '{self._named}%' AND ts > now() - 180 GROUP BY client_id",
        )
        now_s, stored = time.time(), dict(latest)
        for one in self.polite:
            seen = min(stored.get(one.name, 0), len(one.sent_s)) - len(one.seen_s)
            one.seen_s += [now_s] * max(0, seen)
        for line in self._served.ready("?verbose")[1].splitlines():
            if not line.startswith("oldest"):
                self.said[re.sub(r"[\d.,]+", "N", line)] += 1


def losses(fleet: Fleet, served: Served) -> tuple[int, int, int]:
    """Of the polite clients: acknowledged points that are not stored, points that are stored twice, bytes of usage."""
    counts = dict(rows(served.sql, fleet.stored_sql))
    differences = [len(one.sent_s) - int(counts.get(one.name, 0)) for one in fleet.polite]
    lost = sum(max(0, difference) for difference in differences)
    return lost, lost - sum(differences), fleet.unmetered_bytes()


def line(fleet: Fleet, served: Served) -> tuple[str, bool]:
    """What was sent, what the polite clients lost, how late they became and what the health page said; and whether
    they lost nothing and were not late."""
    lost, doubled, unmetered = losses(fleet, served)
    delays_s = fleet.delays_s() or [0.0]
    p50_s, p99_s = (delays_s[int(len(delays_s) * share)] for share in (0.5, 0.99))
    hostile = "; ".join(
        f"{one.attack}: sent {one.requests:,} requests, {one.nbytes / 1e6:.1f} MB, {one.refused:,} asked to wait"
        for one in fleet.hostile
    )
    said = ", ".join(f"{text!r} x{count}" for text, count in fleet.said.most_common())
    text = (
        f"{hostile}; {len(fleet.polite):,} polite clients: {sum(len(one.sent_s) for one in fleet.polite):,} rows"
        f" acknowledged, {lost} lost, {doubled} doubled, {sum(one.refused for one in fleet.polite)} pushes refused,"
        f" {unmetered} bytes of usage lost; late by p50 {p50_s:.1f} s, p99 {p99_s:.1f} s, at most {delays_s[-1]:.1f} s;"
        f" the health page said {said}"
    )
    return text, lost == doubled == unmetered == 0 and p99_s <= MAX_P99_S


def named(served: Served) -> dict[str, list[str]]:
    """Who is over budget according to the page Status, and for what."""
    status, payers = page(served.http, "/status"), json.loads(page(served.http, "/api/v1/payers"))
    return {one["payer"]: sorted(one["refused"]) for one in payers if one["refused"] and one["payer"] in status}


def besieged(served: Served, seconds: float, polite: int, attacks: Sequence[int] = (0, 1, 2)) -> Fleet:
    fleet = Fleet(served, polite, attacks)
    asyncio.run(fleet.run(seconds))
    return fleet


@contextmanager
def gateway(directory: Path, bootstrap: str) -> Iterator[Served]:
    """A gateway whose clients push everything every 10 s."""
    configuration = config_file(directory, push_ms=PUSH_INTERVAL_MS)
    with Served(directory, "--upstream", bootstrap, "--cluster", "fleet", *configuration) as served:
        yield served


def main(arguments: list[str]) -> int:
    seconds, polite = (int(arguments[n]) if len(arguments) > n else value for n, value in enumerate((60, 1_000)))
    java = find_java()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(java, kafka_libs(java)) as kafka,
        gateway(Path(directory), kafka.bootstrap) as served,
    ):
        text, is_well = line(besieged(served, seconds, polite), served)
        print(f"all at once, {seconds} s: {text}", flush=True)
        over = named(served)
        print(f"the page names {over}", flush=True)
        is_well &= {address for _, address in ATTACKS} <= over.keys()
        lines = [line(besieged(served, ALONE_S, ALONE_POLITE, [n]), served) for n in range(len(ATTACKS))]
    for text, is_well_alone in lines:
        print(f"attack {text}")
        is_well &= is_well_alone
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
