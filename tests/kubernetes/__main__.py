"""The chart on a real single-node Kubernetes: a line for each check with its figure.

    tests/kubernetes/run.sh [CHECK ...]

run.sh builds and starts the rig, and runs this in its network. AWAY_S=600: for how long the store is away.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable

from tests.kubernetes import clients, faults, jobs, least, release
from tests.kubernetes.release import Release
from tests.kubernetes.rig import STATE, CheckError, NotTriedError, Outside, kubectl

CHECKS: dict[str, Callable[[Release], str]] = {
    "dry-runs": least.dry_runs,
    "least-values": least.least_values,
    "install": release.install,
    "clients-inside": clients.inside,
    "clients-outside": clients.outside,
    "otlp": clients.otlp,
    "cron-job": jobs.cron_job,
    "spark-submit": jobs.spark_submit,
    "rollout": faults.rollout,
    "drain": faults.drain,
    "out-of-memory": faults.out_of_memory,
    "store-away": faults.store_away,
    "any-user": least.any_user,
    "ipv6-pods": least.ipv6_pods,
    "uninstall": least.uninstall,
}


def main(names: list[str]) -> int:
    """Returns 1 when a check failed."""
    if unknown := set(names) - CHECKS.keys():
        print(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed: list[str] = []
    shutil.rmtree(STATE / "host", ignore_errors=True)
    (STATE / "host").mkdir(parents=True)
    kubectl("delete", "namespace", "headroom", "tools", "dry", "--ignore-not-found")  # of a rig that was kept
    with Outside() as outside:
        target = Release(outside, float(os.environ.get("AWAY_S", "600")))
        clients.start_pod(target)
        for name in [name for name in CHECKS if not names or name in names]:
            began = time.monotonic()
            try:
                line = f"ok: {CHECKS[name](target)}"
            except NotTriedError as exc:
                line = f"not tried: {exc}"
            except Exception as exc:  # noqa: BLE001 the other checks go on
                line = f"FAILED: {exc if isinstance(exc, CheckError) else repr(exc)}"
                failed.append(name)
            print(f"{name}: {line} [{time.monotonic() - began:.0f} s]", flush=True)
        if target.traffic is not None:
            target.traffic.stop()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
