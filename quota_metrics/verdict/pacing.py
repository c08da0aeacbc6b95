"""The two numbers by which a client can pace itself, from one minute of one of its quotas. Sans-I/O."""

from typing import Final, NamedTuple

from exporters.model import BYTE_KEYS
from quota_metrics.windows import bounded_throttle_time_ms

MAX_WAIT_MS: Final = 60_000  # a newer minute says more
_ALL_MINUTE_MS: Final = 59_000  # the last row may not be there yet


class PacingAdvice(NamedTuple):
    """`retry_after_ms`: how long to send nothing. `headroom_bytes_per_s`: how much more all clients of the quota may
    send together to that broker; None for quotas that do not count bytes, and without a limit."""

    retry_after_ms: int
    headroom_bytes_per_s: float | None


class BucketMinute(NamedTuple):
    """What the newest minute says: `limit` is the one that brokers use, None without one; `usage` that of all clients
    that share it, on the worst broker."""

    quota_key: str
    limit: float | None
    usage: float
    throttle_ms: float
    muted_ms: float


def pace(minute: BucketMinute, window_ms: int) -> PacingAdvice:
    """As a broker that meters over `window_ms` would delay: by the throttle time that it announced while it muted the
    client, else by Kafka's own formula when usage is above the limit. A client that was muted all the minute by an
    earlier throttle time waits for a newer minute."""
    if minute.muted_ms > 0 and minute.throttle_ms > 0:
        wait_ms = min(round(minute.throttle_ms), MAX_WAIT_MS)
    elif minute.muted_ms >= _ALL_MINUTE_MS:
        wait_ms = MAX_WAIT_MS
    elif minute.limit is None:
        wait_ms = 0
    else:
        wait_ms = bounded_throttle_time_ms(minute.usage, minute.limit, window_ms, MAX_WAIT_MS)
    left = max(minute.limit - minute.usage, 0.0) if minute.limit is not None and minute.quota_key in BYTE_KEYS else None
    return PacingAdvice(max(wait_ms, 0), left)
