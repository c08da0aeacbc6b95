"""1,000 quotas set on a real broker, beside Kafka's own tool: `python -m tests.bench.quotas.apply`.

kafka-configs.sh changes one entity with each call: some calls are timed, and 1,000 take as many times longer.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import KAFKA_VERSION, find_java, kafka_libs
from quota_metrics.config.entities import entity_of
from quota_metrics.config.quota_file import DeclaredQuota, quota_file
from tests.bench.figure import tell

ENTITIES, CALLS = 1_000, 10
_CACHE = Path(".cache") / f"kafka-{KAFKA_VERSION}"
_KEY = "producer_byte_rate"


def main() -> None:
    java = find_java()
    libs = kafka_libs(java, _CACHE)
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as scratch, LocalCluster(java, libs) as cluster:
        file = Path(scratch) / "quotas.yaml"
        quotas = [DeclaredQuota(entity_of({"user": f"u-{number}"}), {_KEY: 1e6 + number}) for number in range(ENTITIES)]
        file.write_text(quota_file(quotas))
        headroom = [sys.executable, "-m", "headroom", "quotas"]
        of_file = ["-f", str(file), "--bootstrap-server", cluster.bootstrap]
        to_cluster = ["--bootstrap-server", cluster.bootstrap, "--alter", "--entity-type", "users"]
        tool = [java, "-cp", f"{libs}/*", "kafka.admin.ConfigCommand", *to_cluster]
        value = ["--add-config", f"{_KEY}=1000000"]
        calls = [[*tool, "--entity-name", f"t-{number}", *value] for number in range(CALLS)]
        theirs = seconds(lambda: [run(*call) for call in calls]) / CALLS * ENTITIES
        ours = seconds(lambda: run(*headroom, "apply", *of_file, "--yes"))
        assert run(*headroom, "apply", *of_file, "--yes").stderr == "nothing to change\n"
    baseline = f"kafka-configs.sh:{CALLS}_of_{ENTITIES}_calls"
    tell(f"quotas_apply_{ENTITIES}", ours, "s", theirs / ours, baseline, digits=2)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)


def seconds(task: Callable[[], object]) -> float:
    begun = time.monotonic()
    task()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
