"""A service with five hours of usage of clients whose demand has a shape; the jobs' forecasts and reports of them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from exporters.clickhouse.connection import WRITER, Endpoint
from exporters.model import QuotaKey, QuotaLimit
from telemetry.ingest.arrow_tables import limits_table
from tests.kit.clickhouse import QueriedStore
from tests.kit.levels import now_ms
from tests.kit.serving import Served, eventually, rows

CLUSTER = "shop"
BEHIND_S, AHEAD_S = 5 * 3_600, 1_800
JOBS = ("throttle-forecast", "quota-suggest", "quota-headroom")


class Demand(NamedTuple):
    """`wanted`: a share of the limit, in ClickHouse's SQL, by the `hour` since the first row. Without a `limit` it is
    one of 1 MB/s that does not exist. `shared`: the limit is that of the user."""

    client_id: str
    user: str
    wanted: str
    limit: float | None = 1e6
    key: QuotaKey = QuotaKey.PRODUCER_BYTE_RATE
    brokers: int = 1
    shared: bool = False

    @property
    def entity(self) -> str:
        return f"user={self.user}" + ("" if self.shared else f", client-id={self.client_id}")


RISING = Demand("orders-loader", "batch", "0.3 + 0.5 * pow(hour / 5, 1.6)", 4e6)
THROTTLED = Demand("nightly-export", "batch", "1.3 + 0.1 * sin(hour * 4)", 500_000)
DEMANDS = (
    RISING,
    THROTTLED,
    Demand("web-sessions", "web", "0.5 + 0.25 * sin((hour - 4) * pi() / 12)", 8e6),
    Demand("search-indexer", "search", "0.88", 2e7, QuotaKey.CONSUMER_BYTE_RATE, brokers=2),
    Demand("payment-reconciliation-worker", "payments", "0.4 + 0.5 * (hour - floor(hour * 2) / 2 < 0.06)"),
    Demand("customer-360-profile-enricher", "analytics-platform", "0.66"),
    Demand("warehouse-a", "warehouse", "0.55", 3e6, shared=True),
    Demand("warehouse-b", "warehouse", "0.2 + 0.02 * hour", 3e6, shared=True),
    Demand("billing", "finance", "0.12", 2e6),
    Demand("topic-admin", "platform", "0.3", 200.0, QuotaKey.REQUEST_PERCENTAGE),
    Demand("audit", "security", "0.05", None),
)

# While it is muted a client sends nothing: its rate is the limit.
_USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, bucket_user, bucket_client_id, broker_id,
    bytes, rate, throttle_ms, throttled_requests, source, gateway_id, interval_ms, muted_ms, `limit`, limit_known,
    matched_entity)
WITH number / 3600 AS hour, cityHash64(number, {client_id:String}, broker) % 1000 / 1000 - 0.5 AS noise,
    greatest(({wanted}) * (1 + 0.06 * noise), 0) AS demand, if({limited:Bool}, least(demand, 1), demand) AS used,
    if({limited:Bool} AND demand > 1, 1 - 1 / demand, 0) AS muted
SELECT {cluster:String}, {key:String}, toStartOfSecond(now64(3)) - {behind:UInt32} + number, {user:String},
    {client_id:String}, {user:String}, if({shared:Bool}, '', {client_id:String}), broker,
    toUInt64(used * {rate:Float64}), used * {rate:Float64}, 1700 * muted, toUInt64(muted > 0), 'gateway', 'gateway-1',
    1000, toUInt32(1000 * muted), if({limited:Bool}, {rate:Float64}, NULL), 1, {entity:String}
FROM numbers({seconds:UInt64}) ARRAY JOIN range(1, {brokers:UInt8} + 1) AS broker
"""


class FiveHours(NamedTuple):
    """A running service. `environment`: with it commands find this service instead of one at the default addresses."""

    served: Served
    environment: dict[str, str]

    @property
    def address(self) -> str:
        return f"http://{self.served.http}"

    def page_of(self, client: Demand) -> str:
        """Its URL."""
        named = {"cluster": CLUSTER, "user": client.user, "client_id": client.client_id, "range": "6h"}
        return f"{self.address}/clients/detail?{urlencode(named)}"

    def job(self, name: str, *arguments: str) -> str:
        """Runs `headroom job`, as a user does, and returns what it prints."""
        command = [sys.executable, "-m", "headroom", "job", name, *arguments]
        return subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def five_hours() -> Iterator[FiveHours]:
    """Until the block ends. The clients stay active for half an hour."""
    with tempfile.TemporaryDirectory(prefix="headroom-five-hours-") as made, Served(Path(made)) as served:
        data = Path(made) / "data"
        fill(store_of(served, data))
        eventually(
            lambda: rows(served.sql, "SELECT 1 FROM headroom.headroom_now"), lambda now: len(now) >= len(DEMANDS)
        )
        found = {"HEADROOM_URL": f"http://{served.sql}", "HEADROOM_HTTP_ADDRESS": served.http}
        yield FiveHours(served, os.environ | found | {"HEADROOM_DATA": str(data)})


def store_of(served: Served, data: Path) -> QueriedStore:
    """Its managed server, for its writer."""
    host, _, port = served.sql.rpartition(":")
    password = (data / "clickhouse" / "writer.password").read_text().strip()
    return QueriedStore(Endpoint("http", host, int(port), WRITER, password))


def write_usage(store: QueriedStore, demand: Demand, behind_s: int, ahead_s: int) -> None:
    values = {name: getattr(demand, name) for name in ("user", "client_id", "key", "brokers", "shared")}
    values |= {"limited": demand.limit is not None, "rate": demand.limit or 1e6}
    values |= {"cluster": CLUSTER, "entity": demand.entity if demand.limit else ""}
    values |= {"behind": behind_s, "seconds": behind_s + ahead_s}
    store.command(_USAGE.replace("{wanted}", demand.wanted), values)


def fill(store: QueriedStore) -> None:
    """The rules, which are a day old, and the rows of usage."""
    for demand in DEMANDS:
        write_usage(store, demand, BEHIND_S, AHEAD_S)
    since_ms = now_ms() // 86_400_000 * 86_400_000 - 86_400_000
    limits = {
        QuotaLimit(CLUSTER, each.user, "" if each.shared else each.client_id, "", each.key, since_ms, each.limit)
        for each in DEMANDS
        if each.limit
    }
    store.insert("quota_limits", limits_table(sorted(limits), now_ms()), token="five-hours")
