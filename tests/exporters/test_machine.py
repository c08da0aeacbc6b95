"""Threads come from memory and from the container's limits, by files as both versions of cgroups have them."""

import os
from pathlib import Path

import pytest

from exporters.clickhouse.managed.access import users_document, workloads
from exporters.machine import available_cores, available_memory, threads

GIB = 1 << 30
NODE_CORES, NODE_MEMORY = 192, 384 * GIB


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of 192 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(NODE_CORES)), raising=False)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": NODE_MEMORY // 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)


def write(root: Path, groups: str, limits: dict[str, str]) -> None:
    """`groups`: of this process; `limits`: files below the directory of cgroups, without their line ends."""
    files = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in limits.items()}}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


V2 = "0::/\n"
V1 = "5:memory:/docker/1a\n4:cpu,cpuacct:/docker/1a\n1:name=systemd:/docker/1a\n0::/system.slice\n"
NO_LIMIT = str((1 << 63) - 4096)


UNIT = "system.slice/headroom.service"


def version_1(cpu: str, quota: int, memory: str, limit: str) -> dict[str, str]:
    """Files of the directories of both controllers."""
    times = {f"{cpu}/cpu.cfs_quota_us": f"{quota}", f"{cpu}/cpu.cfs_period_us": "100000"}
    return {**times, f"{memory}/memory.limit_in_bytes": limit}


@pytest.mark.parametrize(
    ("groups", "limits", "cores", "memory"),
    [
        (V2, {}, NODE_CORES, NODE_MEMORY),
        (V2, {"cpu.max": "50000 100000", "memory.max": f"{GIB}"}, 0.5, GIB),
        (V2, {"cpu.max": "max 100000", "memory.max": "max"}, NODE_CORES, NODE_MEMORY),
        (
            f"0::/{UNIT}\n",
            {f"{UNIT}/cpu.max": "400000 100000", f"{UNIT}/memory.max": "max"}
            | {"system.slice/cpu.max": "200000 100000", "system.slice/memory.max": f"{4 * GIB}"},
            2,
            4 * GIB,
        ),
        (V1, version_1("cpu,cpuacct", 150_000, "memory", f"{2 * GIB}"), 1.5, 2 * GIB),
        (
            V1,
            version_1("cpu/docker/1a", 300_000, "memory/docker/1a", f"{GIB}")
            | {"memory/memory.limit_in_bytes": NO_LIMIT},
            3,
            GIB,
        ),
        (V1, version_1("cpu,cpuacct", -1, "memory", NO_LIMIT), NODE_CORES, NODE_MEMORY),
        (
            V1,
            {"unified/system.slice/cgroup.procs": "", **version_1("cpu", 100_000, "memory", NO_LIMIT)},
            1,
            NODE_MEMORY,
        ),
        (f"nonsense\n{V2}", {"cpu.max": "", "memory.max": "much"}, NODE_CORES, NODE_MEMORY),
    ],
    ids=[
        "no controllers",
        "version 2 in a namespace of its own, as containers have it",
        "version 2 without limits",
        "CPUQuota of systemd on the unit and less on its slice",
        "version 1 with the host's paths in /proc and the group itself mounted",
        "version 1 with the host's tree",
        "version 1 without limits",
        "both, and version 2 has no controllers",
        "files that say nothing",
    ],
)
def test_limits_are_those_of_the_container(
    groups: str, limits: dict[str, str], cores: float, memory: int, tmp_path: Path
) -> None:
    write(tmp_path, groups, limits)
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (cores, memory)


def test_without_cgroups_all_of_the_machine_may_be_used(tmp_path: Path) -> None:
    """As on macOS."""
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (NODE_CORES, NODE_MEMORY)


@pytest.mark.parametrize(
    ("cpu", "memory", "limit", "number"),
    [
        ("max 100000", "max", 2 * GIB, 16),  # a large node: what 2 GiB hold
        ("max 100000", "max", 64 * GIB, NODE_CORES),
        ("50000 100000", "max", 2 * GIB, 1),  # half a core
        ("250000 100000", "max", 2 * GIB, 3),
        ("max 100000", str(GIB // 2), 2 * GIB, 4),  # the container has less than the server may take
        ("max 100000", str(GIB // 16), 2 * GIB, 1),
    ],
)
def test_threads_fit_into_memory_and_cores(cpu: str, memory: str, limit: int, number: int, tmp_path: Path) -> None:
    write(tmp_path, V2, {"cpu.max": cpu, "memory.max": memory})
    assert threads(limit, root=tmp_path) == number


def test_a_managed_server_on_a_large_node_has_the_threads_that_its_memory_holds() -> None:
    profiles = users_document("w", "", 2 * GIB)["profiles"]
    assert profiles["writer"]["max_threads"] == 16
    for queries in ("readers", "pages"):
        assert "max_concurrent_threads = 16" in workloads(2 * GIB)[f"workload_{queries}"]
    assert "192" not in f"{profiles} {workloads(2 * GIB)}"


def test_this_machine_has_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 < available_cores() <= (os.cpu_count() or 1)
    assert available_memory() > GIB // 4
