"""How the instances of a client changed since the window before an onset: what cause.py tells when nothing else
explains the rise.

An instance is new if it was seen first in the window before the onset or later, and the client had others before. The
text names the new ones that run a version of the software which no instance ran before. Without any it names those in a
network where none was before, else all, as more instances or as restarted ones. In words: docs/levels.md.
"""

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from quota_metrics.verdict.number_words import clock
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS
from quota_metrics.verdict.window import InstanceChange

_SILENT_INTERVALS: Final = 3
_LEAST_SILENT_MS: Final = 15_000
LONGEST_SILENCE_MS: Final = 900_000  # that of the longest push interval


class SeenInstance(NamedTuple):
    """A client instance, and when it was there."""

    instance: str
    first_ms: int
    gone_ms: int
    software: str  # name and version
    network: str  # '' when the address is none


class ByteReport(NamedTuple):
    """The bytes that an instance reports in a window."""

    instance: str
    window_start_ms: int
    sent: float
    received: float


def gone_ms(first_ms: int, last_ms: int, pushes: int, *, is_terminated: bool) -> int:
    """When an instance is gone: after its terminating push, or when three of its push intervals have passed without a
    push: many clients end without a terminating one. The interval is that between its pushes; nobody knows it before
    the second."""
    if is_terminated:
        return last_ms
    if pushes < 2:
        return last_ms + LONGEST_SILENCE_MS
    silent_ms = _SILENT_INTERVALS * (last_ms - first_ms) // (pushes - 1)
    return last_ms + min(max(silent_ms, _LEAST_SILENT_MS), LONGEST_SILENCE_MS)


def network_of(address: str) -> str:
    """`10.1.2.0/24`, and of IPv6 the /64; '' for what is no address."""
    try:
        return str(ipaddress.ip_network(f"{address}/{64 if ':' in address else 24}", strict=False))
    except ValueError:
        return ""


def changes_before(
    instances: Sequence[SeenInstance], reports: Sequence[ByteReport], start_ms: int, window_ms: int
) -> tuple[InstanceChange, ...]:
    """What the window that begins at `start_ms` may tell of onsets one, two, ... CAUSE_WINDOWS windows before it; ()
    when no instance is new."""
    if all(instance.first_ms < start_ms - (CAUSE_WINDOWS + 1) * window_ms for instance in instances):
        return ()
    until_now = [report for report in reports if report.window_start_ms <= start_ms]
    changes = tuple(
        _change_since(instances, until_now, start_ms - ago * window_ms, start_ms + window_ms, window_ms)
        for ago in range(1, CAUSE_WINDOWS + 1)
    )
    return changes if any(change.text for change in changes) else ()


def _change_since(
    instances: Sequence[SeenInstance], reports: Sequence[ByteReport], onset_ms: int, end_ms: int, window_ms: int
) -> InstanceChange:
    """Between the begin of the window before the onset and `end_ms`."""
    since_ms = onset_ms - window_ms
    now = [instance for instance in instances if instance.first_ms < end_ms <= instance.gone_ms]
    before = [instance for instance in instances if instance.first_ms < since_ms <= instance.gone_ms]
    new = [instance for instance in now if instance.first_ms >= since_ms]
    versions, networks = {instance.software for instance in before}, {instance.network for instance in before}
    version = _most_frequent([instance.software for instance in new if instance.software not in {*versions, ""}])
    network = _most_frequent([instance.network for instance in new if instance.network not in {*networks, ""}])
    named = new
    if version:
        named = [instance for instance in new if instance.software == version]
    elif network:
        named = [instance for instance in new if instance.network == network]
    names = {instance.instance for instance in named}
    since_onset = [report for report in reports if report.window_start_ms >= onset_ms]
    return InstanceChange(
        _in_words(named, now, before, version, network) if new and before else "",
        (len(now) - len(new)) / max(len(before), 1),
        len(now) / max(len(before), 1) - 1 if len(now) > len(before) else 0.0,
        _share_of([(report.instance in names, report.sent) for report in since_onset]),
        _share_of([(report.instance in names, report.received) for report in since_onset]),
    )


def _most_frequent(values: Sequence[str]) -> str:
    """Of equally frequent ones the first by name; '' of none."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value), default="")


def _in_words(
    named: Sequence[SeenInstance],
    now: Sequence[SeenInstance],
    before: Sequence[SeenInstance],
    version: str,
    network: str,
) -> str:
    at = clock(min(instance.first_ms for instance in named))
    part = f"{len(named)} of {len(now)} instances"
    if version:
        earlier = _most_frequent([instance.software for instance in before])
        return f"{part} run {version} since {at}, {earlier} before"
    if network:
        return f"{part} are in {network} since {at}, none before"
    if len(now) > len(before):
        return f"{len(now)} instances since {at}, {len(before)} before"
    return f"{part} restarted at {at}"


def _share_of(reported: Sequence[tuple[bool, float]]) -> float | None:
    """The share of the bytes of which the condition holds; None where nobody reports bytes."""
    total = sum(number for _, number in reported)
    return sum(number for is_named, number in reported if is_named) / total if total > 0 else None
