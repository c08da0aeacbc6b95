"""`python -m tests.chaos.cluster SEED KILLS`: nodes of a cluster are killed in turn, each 10 s, under load.

Then the first and the last one are slow for a while, and not dead. There are two shards of two replicas. Acknowledged
points must be stored once, in raw tables and rollups, according to all nodes.
"""

import asyncio
import random
import shutil
import sys
import time
from collections import Counter
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from headroom.demo.processes import LOOPBACK
from tests.chaos.audit import NO_MERGES, Audit, audit
from tests.chaos.load import Load
from tests.chaos.rare_faults import QUIET_S, SLOW_S, conclude, slow_down, watched
from tests.chaos.scenario import CLIENTS, settled, subscribe, until
from tests.chaos.victim import Headroom, signal_process
from tests.kit.clickhouse_cluster import RunningCluster, running_cluster, zookeeper_libs

DIRECTORY = Path("build/chaos-cluster")
PERIOD_S = 10.0
AWAY_S = (0.0, 6.0)  # downtime of a killed node
SPOOL_BYTES = 1 << 28


async def killed_in_turn(
    upstream: str, directory: Path, clickhouse: RunningCluster, rng: random.Random, kills: int, period_s: float
) -> list[Audit]:
    """The contents of each node at the end."""
    headroom = Headroom(upstream, directory, clickhouse, spool_bytes=SPOOL_BYTES)
    headroom.begin()
    try:
        await headroom.opened()
        # The worker applies the schema before it writes.
        await until(lambda: headroom.metrics()["headroom_store_up"] == 1, "the schema")
        with clickhouse.nodes[0].admin() as client:
            client.command(NO_MERGES.format(table="points_local"))
        load = Load(CLIENTS, lambda: (LOOPBACK, headroom.kafka_port), rng)
        load.start()
        windows = [await watched("none", load.ledger, lambda: asyncio.sleep(QUIET_S))]
        for node in islice(cycle(clickhouse.nodes), kills):
            began_s = time.monotonic()
            node.kill()
            await asyncio.sleep(rng.uniform(*AWAY_S))
            node.launch()
            await asyncio.to_thread(node.wait_ready)
            await asyncio.sleep(max(0.0, began_s + period_s - time.monotonic()))
        for number in (0, -1):
            signalled = partial(signal_process, clickhouse.nodes[number].pid)
            windows.append(await watched(f"slow node {number}", load.ledger, partial(slow_down, signalled, SLOW_S)))
        counts, is_at_rest = await settled(headroom, load)
        await asyncio.to_thread(clickhouse.wait_in_sync)
        found = [audit(node.endpoint("writer"), load.ledger.acknowledged) for node in clickhouse.nodes]
        conclude(windows, found[0])
        if not is_at_rest:
            found[0].faults.append(f"received is not written + dropped, and nothing is left to be read: {counts}")
        if any(each.values != found[0].values for each in found):
            found[0].faults.append("the nodes have different points")
        found[0].killed = Counter({"node": kills})
        return found
    finally:
        headroom.stop()


def main(seed: int, kills: int) -> int:
    """Prints each discrepancy and a summary line; returns 0 when there is none."""
    java = find_java()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    directory = DIRECTORY.absolute()
    with (
        running_cluster(java, zookeeper_libs(java, Path(".cache")), directory, shards=2, replicas=2) as clickhouse,
        LocalCluster(java, kafka_libs(java)) as kafka,
    ):
        asyncio.run(subscribe(kafka.bootstrap))
        run = killed_in_turn(kafka.bootstrap, directory / "headroom", clickhouse, random.Random(seed), kills, PERIOD_S)
        audits = asyncio.run(run)
    for number, node in enumerate(audits, 1):
        print(
            f"node={number} acknowledged={node.acknowledged} stored={node.stored} doubled={node.doubled}", *node.faults
        )
    worst = max(audits, key=lambda node: (node.lost, node.doubled))
    print(
        f"chaos kills={kills} acknowledged={worst.acknowledged} stored={worst.stored}"
        f" lost={worst.lost} doubled={worst.doubled}"
    )
    return 1 if any(node.lost or node.doubled or node.faults for node in audits) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
