"""Checks under load: a rollout, a drain, a kill by the kernel for memory, and a store that is away."""

import contextlib
import time

from tests.kubernetes.clients import inside
from tests.kubernetes.load import Watched
from tests.kubernetes.release import VALUES, Release
from tests.kubernetes.rig import (
    CHART,
    NAMESPACE,
    NODE,
    CheckError,
    helm,
    kubectl,
    pod_status,
    ready_again,
    until,
    wait_ready,
)

STATEFUL_SET = "sts/headroom"
POD = "headroom-0"
# Takes memory in parts that are smaller than the gateway, so that the kernel kills the gateway first.
_TAKE_MEMORY = """
import os, time
while True:
    if os.fork() == 0:
        taken = bytearray(16 << 20)
        for page in range(0, len(taken), 4096):
            taken[page] = 1
        time.sleep(600)
    time.sleep(0.05)
"""


def watched(release: Release) -> Watched:
    assert release.traffic is not None, "nothing is installed"
    return Watched(release.traffic, release.outside)


def rollout(release: Release) -> str:
    """`kubectl rollout restart`, as an upgrade does it."""
    traffic, began = watched(release), time.monotonic()
    kubectl("-n", NAMESPACE, "rollout", "restart", STATEFUL_SET)
    wait_ready(NAMESPACE)
    return f"2 pods in {time.monotonic() - began:.0f} s; {traffic.verdict()}"


def drain(release: Release) -> str:
    """The one node is drained for a while: the disruption budget keeps the second gateway until the first is back."""
    traffic, began = watched(release), time.monotonic()
    selected = ["--pod-selector=app.kubernetes.io/name=headroom", "--delete-emptydir-data", "--timeout=20s"]
    try:
        kubectl("drain", NODE, *selected)
    except CheckError as exc:
        if "disruption budget" not in str(exc) and "global timeout" not in str(exc):
            raise
    else:
        raise CheckError("both gateways were evicted at once")
    finally:
        kubectl("uncordon", NODE)
    wait_ready(NAMESPACE)
    until(60, lambda: pod_status(NAMESPACE, POD)["phase"] == "Running", "the pod runs")
    return f"1 pod evicted, 1 kept, both ready after {time.monotonic() - began:.0f} s; {traffic.verdict()}"


def out_of_memory(release: Release) -> str:
    """A pod reaches its memory limit, and the kernel kills its processes."""
    helm("upgrade", "headroom", CHART, "-n", NAMESPACE, values={**VALUES, "resources": {"limits": {"memory": "640Mi"}}})
    wait_ready(NAMESPACE)
    traffic, began = watched(release), time.monotonic()
    restarts = pod_status(NAMESPACE, POD)["containerStatuses"][0]["restartCount"]
    with contextlib.suppress(CheckError):  # it dies with the pod
        kubectl("-n", NAMESPACE, "exec", POD, "--", "python3", "-c", _TAKE_MEMORY, timeout_s=90)
    until(90, lambda: ready_again(NAMESPACE, POD, restarts), f"{POD} is ready again")
    took = time.monotonic() - began
    last = pod_status(NAMESPACE, POD)["containerStatuses"][0]["lastState"]["terminated"]
    return f"{last['reason']} (exit {last['exitCode']}), ready again after {took:.0f} s; {traffic.verdict()}"


def store_away(release: Release) -> str:
    """No ClickHouse for AWAY_S seconds; in that time a pod restarts, and new clients of Java and librdkafka come."""
    traffic, began = watched(release), time.monotonic()
    release.outside.stop_store()
    try:
        time.sleep(min(70.0, release.away_s / 4))
        kubectl("-n", NAMESPACE, "delete", "pod", POD, timeout_s=120)
        wait_ready(NAMESPACE)
        restarted = time.monotonic() - began
        clients = inside(release, "away")
        time.sleep(max(0.0, release.away_s - (time.monotonic() - began)))
        late = inside(release, "late")
        status = pod_status(NAMESPACE, "headroom-1")["containerStatuses"][0]
    finally:
        release.outside.start_store()
    away = time.monotonic() - began
    if not status["ready"]:
        raise CheckError(f"headroom-1 left the service: {status}")
    return (
        f"away {away:.0f} s; a pod restarted in it, both ready after {restarted:.0f} s; new clients: {clients};"
        f" at its end: {late}; {traffic.verdict()}"
    )
