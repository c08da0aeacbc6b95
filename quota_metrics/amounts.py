"""Formats rates, bytes, shares, durations and levels for pages, tables and reports. No I/O.

Units are decimal, as in Kafka's quotas: 1 MB/s is 1,000,000 bytes per second.
"""

from typing import Final, NamedTuple

from exporters.model import QuotaKey


class Style(NamedTuple):
    """How a level looks in a terminal (rich), on a light page, as in reports and Grafana, and on a dark page."""

    terminal: str
    light: str
    dark: str


STYLES: Final = {
    "throttled": Style("bold red", "#a40e26", "#ff8a96"),
    "critical": Style("red", "#b3330b", "#ffa07a"),
    "warn": Style("yellow", "#8a5a00", "#f0c25e"),
    "watch": Style("cyan", "#1f6f8c", "#7cc4dd"),
    "ok": Style("green", "#14692c", "#6fd58c"),
    "unknown": Style("dim", "#57606a", "#9aa5b1"),
}

_PREFIXES = ("", "k", "M", "G", "T", "P")
UNITS: Final[dict[str, str]] = {
    QuotaKey.REQUEST_PERCENTAGE: "%",
    QuotaKey.CONTROLLER_MUTATION_RATE: "mutations/s",
    QuotaKey.CONNECTION_CREATION_RATE: "connections/s",
}
_WORDS: Final[dict[str, str]] = {
    QuotaKey.PRODUCER_BYTE_RATE: "produce",
    QuotaKey.CONSUMER_BYTE_RATE: "fetch",
    QuotaKey.REQUEST_PERCENTAGE: "request",
    QuotaKey.CONTROLLER_MUTATION_RATE: "mutation",
    QuotaKey.CONNECTION_CREATION_RATE: "connection",
}


def rate_text(value: float | None, quota_key: str) -> str:
    """`85.0 kB/s`, `12.5 %` of one thread, `3.0 mutations/s`; `-` for None."""
    if value is None:
        return "-"
    unit = UNITS.get(quota_key)
    return f"{bytes_text(value)}/s" if unit is None else f"{value:.1f} {unit}"


def of_limit_text(usage: float, limit: float | None, quota_key: str) -> str:
    """`85.0 / 200.0 kB/s`, `85.0 kB/s / 1.0 MB/s`: a unit that both have stands once."""
    used, most = rate_text(usage, quota_key), rate_text(limit, quota_key)
    (number, _, unit), (_, _, unit_of_limit) = used.partition(" "), most.partition(" ")
    return f"{number if unit == unit_of_limit else used} / {most}"


def quota_word(quota_key: str) -> str:
    """A quota's key in one word, where there is little room: `produce` for producer_byte_rate."""
    return _WORDS.get(quota_key, quota_key)


def bytes_text(value: float) -> str:
    """`512 B`, `85.0 kB`, `1.5 MB`."""
    size, prefix = abs(value), 0
    while size >= 999.95 and prefix < len(_PREFIXES) - 1:
        size, prefix = size / 1000, prefix + 1
    digits = 1 if prefix else 0
    return f"{'-' if value < 0 else ''}{size:.{digits}f} {_PREFIXES[prefix]}B"


def share_text(value: float | None) -> str:
    """`85.0 %`; `-` for None."""
    return "-" if value is None else f"{value * 100:.1f} %"


def exact_share_text(value: float | None) -> str:
    """As `share_text`, but a small share is not 0: `0.04 %`."""
    return share_text(value) if not value or abs(value) >= 0.0005 else f"{value * 100:.2g} %"


def count_text(count: int, thing: str) -> str:
    """`1 value`, `2 values`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def duration_text(value_ms: float | None) -> str:
    """`250 ms`, `1.5 s`, `3.0 min`, `2.5 h`; `-` for None."""
    if value_ms is None:
        return "-"
    for unit, size_ms in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(value_ms) >= size_ms:
            return f"{value_ms / size_ms:.1f} {unit}"
    return f"{value_ms:.0f} ms"
