"""The subscription id of a client instance: CRC32C of the merged subscription, and the instance's hash code.

Source: ClientMetricsManager.computeSubscriptionId.
"""

from collections.abc import Iterable

import crc32c

from telemetry.subscriptions.java.hash import uuid_hash


def subscription_crc(metrics: Iterable[str], interval_ms: int) -> int:
    """The part of a subscription id shared by all instances, unsigned. `metrics`: in their set's iteration order."""
    text = f"[{', '.join(metrics)}]{interval_ms}"
    crc: int = crc32c.crc32c(text.encode("utf-8", "replace"))
    return crc


def instance_subscription_id(crc: int, client_instance_id: bytes) -> int:
    """ClientMetricsManager.computeSubscriptionId, signed 32 bits, from the `subscription_crc`."""
    value = crc ^ uuid_hash(client_instance_id)
    return value - (1 << 32) if value >> 31 else value
