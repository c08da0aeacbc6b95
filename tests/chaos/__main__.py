"""`python -m tests.chaos SEED KILLS FAULTS`: kill -9 under load, and faults of the store.

No acknowledged point may be lost or stored twice. Each process is killed equally often.
"""

import asyncio
import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from tests.chaos.rare_faults import rare_faults
from tests.chaos.scenario import managed, served, subscribe
from tests.chaos.store_faults import shared_disk, store_faults

DIRECTORY = Path("build/chaos")  # logs and data of a run


def main(seed: int, kills: int, faults: int) -> int:
    """Prints each discrepancy and a summary line; returns 0 when there is none."""
    java = find_java()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    rng = random.Random(seed)
    with LocalCluster(java, kafka_libs(java)) as cluster:
        asyncio.run(subscribe(cluster.bootstrap))
        audits = []
        if kills:  # four processes in each; a separate server is killed twice as often
            audits.append(asyncio.run(managed(cluster.bootstrap, DIRECTORY / "managed", rng, kills * 4 // 9)))
            audits.append(asyncio.run(served(cluster.bootstrap, DIRECTORY / "served", rng, kills - kills * 4 // 9)))
        if faults:
            audits.append(asyncio.run(store_faults(cluster.bootstrap, DIRECTORY / "faults", rng, faults)))
            audits.append(asyncio.run(rare_faults(cluster.bootstrap, DIRECTORY / "rare", rng)))
            if os.geteuid() == 0:  # a disk of its own needs a mount
                audits.append(asyncio.run(shared_disk(cluster.bootstrap, DIRECTORY / "shared", rng, faults // 3)))
    killed = sum((audit.killed for audit in audits), Counter())
    print("killed", *(f"{victim}={number}" for victim, number in sorted(killed.items())))
    for fault in (fault for audit in audits for fault in audit.faults):
        print(fault)
    acknowledged, stored = sum(audit.acknowledged for audit in audits), sum(audit.stored for audit in audits)
    lost, doubled = sum(audit.lost for audit in audits), sum(audit.doubled for audit in audits)
    print(f"chaos kills={killed.total()} acknowledged={acknowledged} stored={stored} lost={lost} doubled={doubled}")
    return 1 if lost or doubled or any(audit.faults for audit in audits) else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
