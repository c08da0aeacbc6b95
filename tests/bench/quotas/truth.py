"""Throttled clients for two minutes: our utilisation and throttle times against the broker's by JMX.

python -m tests.bench.quotas.truth [SECONDS]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headroom.demo.jars import find_java, kafka_libs
from headroom.demo.jvm import Jvm
from tests.quota_metrics.measure import quota_truth


def main(seconds: float) -> None:
    java = find_java()
    libs = kafka_libs(java)
    with (
        tempfile.TemporaryDirectory() as spool,
        Jvm(java, libs) as jvm,
        quota_truth.loaded_broker(java, libs, jvm, Path.cwd(), Path(spool)) as loaded,
    ):
        found = quota_truth.compare(loaded.truth, loaded.gateway, seconds)
    for ((quota_key, user, client_id), what), one in sorted(found.items()):
        who = f"{quota_key}:{user}:{client_id}"
        print(
            f"truth {what} {who} ours={one.ours:.1f} brokers={one.brokers:.1f} difference={one.difference:.3%}"
            f" at_a_moment_p50={one.moment_p50:.2%} p95={one.moment_p95:.2%}"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
