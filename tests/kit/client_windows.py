"""Windows of a client, as the verdict reads them."""

from typing import Any

from quota_metrics.verdict.window import Window

MINUTE_MS = 60_000
LIMIT = 200_000.0
_QUIET = Window(
    cluster="prod",
    source="gateway",
    quota_key="producer_byte_rate",
    user="alice",
    client_id="orders",
    broker_id=1,
    window_start_ms=0,
    elapsed_s=60,
    state="limited",
    limit=LIMIT,
    rule_limit=LIMIT,
    decided_by="",
    implied_limit=None,
    matched_entity="client-id=orders",
    bucket_user="",
    bucket_client_id="orders",
    usage=0.0,
    usage_p95=0.0,
    usage_max=0.0,
    bytes=0,
    samples=60,
    throttle_ms=0.0,
    muted_ms=0.0,
    group_usage=0.0,
    group_p95=0.0,
    group_last=0.0,
    shared_with=0,
    greediest_user="alice",
    greediest_client_id="orders",
    greediest_usage=0.0,
    members_usage=0.0,
    usage_rank=1,
)


def client_window(mean: float = 0.0, p95: float = 0.0, **other: Any) -> Window:
    """`mean`, `p95`: shares of LIMIT that the client uses alone; in `other` are the fields that differ."""
    usage, most = mean * LIMIT, max(mean, p95) * LIMIT
    rates = {"usage": usage, "usage_p95": most, "usage_max": most, "group_usage": usage, "group_p95": most}
    return _QUIET._replace(**{**rates, "members_usage": usage, "greediest_usage": usage, **other})
