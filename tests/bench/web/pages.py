"""Each page and each API endpoint of `headroom serve` over 10 M rows of usage and 100 k clients: latency over HTTP.

python -m tests.bench.web.pages

All are requested in turns, one after the other, each round with the names of another client, so that none is answered
by the cache of the request before. What-if questions look at an hour of one user and at six hours of all users, with a
goal of their own.
"""

import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tests.bench.figure import tell
from tests.bench.live_views import BUSY, CLUSTER, fill
from tests.bench.performance import PAGE_MS, WHAT_IF_MS
from tests.kit.clickhouse import running_clickhouse
from tests.kit.serving import Served

ROWS, SERIES = 10_000_000, 200_000
ROUNDS = 50  # a 95th percentile of 25 would be the second worst
CACHED_S = 2.1  # equal requests within it share one result


def paths(number: int) -> dict[str, str]:
    """What is requested in one round, by the name of its figure."""
    busy = number % BUSY
    client = {"cluster": CLUSTER, "user": f"user-{busy % 50}", "client_id": f"busy-{busy}"}
    preview = urlencode({"metrics": f"org.apache.kafka.producer.metric{3 + number}", "match": "client_id=busy-.*"})
    asked = urlencode(client)
    other = {"cluster": CLUSTER, "client_id": "<default>", "value": 45_000 + number}
    quota, default = urlencode({**other, "user": client["user"]}), urlencode({**other, "user": "<default>"})
    return {
        "page_overview": "/",
        "page_overview_search": f"/?q=client-{number}",
        "page_overview_level": "/?level=warn,critical,throttled&sort=utilization",
        "page_client": f"/clients/detail?{asked}",
        "page_quotas": "/quotas",
        "page_what_if": f"/quotas/what-if?{quota}&since=1h",
        "page_subscriptions": "/subscriptions",
        "page_subscription_preview": f"/subscriptions/preview?{preview}",
        "page_status": "/status",
        "api_headroom": f"/api/v1/headroom?cluster={CLUSTER}",
        "api_headroom_search": f"/api/v1/headroom?q=client-{number}",
        "api_usage": f"/api/v1/usage?{asked}&quota_key=producer_byte_rate",
        "api_clients": f"/api/v1/clients?cluster={CLUSTER}",
        "api_client": f"/api/v1/client?{asked}",
        "api_gateway_share": "/api/v1/gateway-share",
        "api_quotas": f"/api/v1/quotas?cluster={CLUSTER}",
        "api_quota_changes": f"/api/v1/quota-changes?cluster={CLUSTER}",
        "api_what_if": f"/api/v1/what-if?{quota}&since=1h",
        "api_what_if_everyone": f"/api/v1/what-if?{default}&since=6h",
        "api_subscriptions": "/api/v1/subscriptions",
        "api_subscription_preview": f"/api/v1/subscription-preview?{preview}",
        "api_status": "/api/v1/status",
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, running_clickhouse(Path(directory) / "clickhouse") as server:
        fill(server, ROWS, SERIES)
        with (
            Served(Path(directory), environment=server.environment) as served,
            httpx.Client(base_url=f"http://{served.http}", timeout=60) as browser,
        ):
            took: dict[str, list[float]] = {}
            for number in range(ROUNDS + 1):
                began_s = time.monotonic()
                for name, path in paths(number).items():
                    asked_s = time.perf_counter()
                    answer = browser.get(path)
                    took.setdefault(name, []).append((time.perf_counter() - asked_s) * 1000)
                    assert answer.status_code == 200, (path, answer.text[:300])
                time.sleep(max(CACHED_S - (time.monotonic() - began_s), 0))
            for name, (_, *took_ms) in took.items():  # the first round warms caches and connections
                p95 = statistics.quantiles(took_ms, n=20)[-1]
                goal_ms = WHAT_IF_MS if "what_if" in name else PAGE_MS
                tell(f"{name}_p95_ms", p95, "ms", p95 / goal_ms, f"goal_{goal_ms:.0f}_ms")


if __name__ == "__main__":
    main()
