"""Three minutes of quota usage, and what quota-headroom publishes of them."""

from typing import Any

from tests.kit.clickhouse import RunningClickHouse
from tests.kit.usage_rows import FRIDAY_MS, insert_limits, insert_usage

START = FRIDAY_MS
CLUSTER = "two-workers"


def fill(clickhouse: RunningClickHouse) -> None:
    """Twenty clients of three users at two brokers for three minutes; Spark has to resolve the limits of half of
    them."""
    at = [(second, client) for second in range(180) for client in range(20)]
    known = [client % 2 for _, client in at]
    insert_usage(
        clickhouse.store,
        CLUSTER,
        [START + second * 1000 for second, _ in at],
        [float(10 * client + second % 7) for second, client in at],
        user=[f"u{client % 3}" for _, client in at],
        client_id=[f"c{client}" for _, client in at],
        broker_id=[client % 2 for _, client in at],
        throttle_ms=[float(700 * (client == 19)) for _, client in at],
        interval_ms=1000,
        muted_ms=[700 * (client == 19) for _, client in at],
        limit=[500.0 if one else None for one in known],
        limit_known=known,
        bucket_client_id="",
    )
    insert_limits(clickhouse.store, CLUSTER, START - 60_000, {"<default>": 500.0})


def committed(clickhouse: RunningClickHouse) -> list[Any]:
    return list(
        clickhouse.store.query(
            "SELECT * EXCEPT (run_id, run_version) FROM headroom.quota_utilization_committed"
            f" WHERE cluster = '{CLUSTER}' ORDER BY window_start, user, client_id"
        )
    )
