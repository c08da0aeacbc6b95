"""Each page of `headroom serve` with 100,000 clients in every minute, 5,000 rules and 10,000 subscriptions.

Latency, the bytes of a first view, and whether each list says how many there are.

python -m tests.bench.web.crowd
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import httpx
import yaml

from tests.bench.figure import tell
from tests.bench.web.pages import measured, tell_p95
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.levels import compute_levels
from tests.kit.serving import Served, eventually

CLUSTER: Final = "crowd"
CLIENTS, RULES, SUBSCRIPTIONS = 100_000, 5_000, 10_000
SHOWN_MINUTES: Final = 15  # of a sparkline
AHEAD_MINUTES: Final = 10  # a minute that is shown while the bench runs has all clients, too
FIRST_VIEW_BYTES: Final = 100_000
FIRST_VIEW = ("/static/headroom.css", "/static/live.js", "/static/icon.svg", "/static/vendor/htmx-2.0.11.min.js")

# Each client has a row a minute, and the rule of its user: 20 clients share a rule.
_USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, ip, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, limit, limit_known, matched_entity, bucket_user,
    bucket_client_id, muted_ms)
SELECT 'crowd', 'producer_byte_rate', toDateTime64({minute} + number % 60, 3, 'UTC'), user_name,
    concat('client-', toString(number)), '', number % 3, 50000, rate_now, if(number % 997 = 0, 300, 0), 0, 'gateway',
    'gw', 1000, 1000000, 1, concat('user=', user_name), user_name, '', if(number % 997 = 0, 300, 0)
FROM (SELECT number, concat('user-', toString(number % {rules})) AS user_name, 20000 + number % 40000 AS rate_now
      FROM numbers({clients}))
"""
_LIMITS = """
INSERT INTO headroom.quota_limits (cluster, user, client_id, quota_key, valid_from, value)
SELECT 'crowd', concat('user-', toString(number)), '', 'producer_byte_rate', now64(3) - INTERVAL 1 DAY, 1000000
FROM numbers({rules})
"""
_INSTANCES = """
INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,
    software_version, source_address, first_seen, last_seen, pushes, points)
SELECT 'crowd', toUUID(UUIDNumToString(reverse(reinterpretAsFixedString(toUInt128(number + 1))))),
    concat('client-', toString(number)), concat('user-', toString(number % {rules})), 'apache-kafka-java', '4.3.1',
    concat('10.0.', toString(intDiv(number, 250) % 250), '.', toString(number % 250)), now64(3) - INTERVAL 1 HOUR,
    now64(3), 10, 1000
FROM numbers({clients})
"""


def paths(number: int) -> dict[str, str]:
    """What is requested in one round, by the name of its figure."""
    client = {"cluster": CLUSTER, "user": f"user-{number}", "client_id": f"client-{number}"}
    asked = {"cluster": CLUSTER, "user": f"user-{number}", "quota_key": "producer_byte_rate", "value": 200_000 + number}
    far = CLIENTS - 100 - number
    return {
        "crowd_overview": "/",
        "crowd_overview_far": f"/?offset={far}",
        "crowd_overview_by_user": f"/?by=user&offset={number}",
        "crowd_overview_by_rule": f"/?by=rule&offset={number}",
        "crowd_overview_by_name": f"/?sort=client_id&offset={number}",
        "crowd_overview_of_rule": f"/?rule={quote(f'user=user-{number}')}",
        "crowd_search": f"/?q=client-{7_000 + number}",
        "crowd_search_address": f"/?q=10.0.{number}.",
        "crowd_search_week": f"/clients/seen?q=client-{7_000 + number}",
        "crowd_client": f"/clients/detail?{urlencode(client)}",
        "crowd_quotas": f"/quotas?offset={number}",
        "crowd_quotas_search": f"/quotas?q=user-{number}",
        "crowd_what_if": f"/quotas/what-if?{urlencode(asked)}&since=15m",
        "crowd_subscriptions": f"/subscriptions?offset={number}",
        "crowd_subscriptions_far": f"/subscriptions?offset={SUBSCRIPTIONS - 100 - number}&clients_offset={far}",
        "crowd_subscriptions_search": f"/subscriptions?q=team-{number}",
        "crowd_preview": f"/subscriptions/preview?metrics=org.&match={quote(f'client_id=client-{number}.*')}",
        "crowd_status": "/status",
    }


def fill(server: RunningClickHouse) -> None:
    numbers = {"rules": RULES, "clients": CLIENTS}
    newest = int(time.time()) // 60 * 60
    minutes = range(newest - 60 * (SHOWN_MINUTES + 2), newest + 60 * AHEAD_MINUTES, 60)
    for minute in minutes:
        server.store.command(_USAGE.format(**numbers, minute=minute), {})
    server.store.command(_LIMITS.format(**numbers), {})
    server.store.command(_INSTANCES.format(**numbers), {})
    compute_levels(server.store, *(newest - 60 * ago for ago in reversed(range(2, SHOWN_MINUTES + 2))))


def subscriptions(directory: Path) -> Path:
    """A file of SUBSCRIPTIONS."""
    one = {"metrics": "org.apache.kafka.producer.", "interval.ms": 60_000}
    file = directory / "subscriptions.yaml"
    every = {f"team-{number}": {**one, "match": f"client_id=client-{number}"} for number in range(SUBSCRIPTIONS)}
    file.write_text(yaml.safe_dump(every))
    return file


def first_view_bytes(browser: httpx.Client) -> int:
    """What a browser that was never here transfers for the overview."""
    total = 0
    for path in ("/", *FIRST_VIEW):
        with browser.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            total += sum(len(chunk) for chunk in answer.iter_raw())
    return total


def counts(browser: httpx.Client, path: str) -> list[int]:
    """What the pagers of a page say: of how many rows they show some."""
    found = re.findall(r'<p class="pager">[\d,]+ to [\d,]+ of ([\d,]+)', browser.get(path).text)
    return [int(number.replace(",", "")) for number in found]


def main() -> None:
    with tempfile.TemporaryDirectory() as name, running_clickhouse(Path(name) / "clickhouse") as server:
        directory = Path(name)
        fill(server)
        (directory / "serve.yaml").write_text(yaml.safe_dump({"subscriptions": str(subscriptions(directory))}))
        os.environ["HEADROOM_CLICKHOUSE_PASSWORD"] = server.writer.password
        arguments = ("--clickhouse", server.writer.url, "--config", str(directory / "serve.yaml"))
        with (
            Served(directory, *arguments) as served,
            httpx.Client(base_url=f"http://{served.http}", timeout=60) as browser,
        ):
            eventually(lambda: counts(browser, "/"), lambda found: found == [CLIENTS])
            tell_p95(measured(browser, paths))
            nbytes = first_view_bytes(browser)
            tell("crowd_first_view", nbytes / 1000, "kB", nbytes / FIRST_VIEW_BYTES, "goal_100_kB")
            for path, expected in {
                "/": [CLIENTS], "/?by=rule": [RULES], "/?by=user": [RULES], "/quotas": [RULES],
                "/subscriptions": [SUBSCRIPTIONS, CLIENTS],
            }.items():  # fmt: skip
                said = counts(browser, path)
                assert said == expected, (path, said)


if __name__ == "__main__":
    main()
