"""A service with a broker and ten minutes of recorded clients: what the commands and pictures of docs/ are about.

python -m tests.docs.example_service writes the pictures of docs/images.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from playwright.sync_api import sync_playwright

from headroom.demo.broker import LocalCluster
from headroom.demo.jars import find_java, kafka_libs
from tests.headroom.web.pictures import settle
from tests.kit import wire
from tests.kit.serving import Served, eventually, rows

CLUSTER = "shop"
AHEAD_S, BEHIND_S = 1_800, 900  # of usage after and before now
MINUTES = 12  # whole ones with levels, for the curve of the last 15
IMAGES = Path(__file__).parents[2] / "docs" / "images"


class Client(NamedTuple):
    """`mean` and `burst` are shares of the limit; `muted_ms` of each second."""

    client_id: str
    user: str
    limit: float | None
    mean: float
    burst: float = 0.0
    muted_ms: int = 0
    key: str = "producer_byte_rate"


CLIENTS = (
    Client("orders-loader", "batch", 200_000, 0.99, 0.02, 520),
    Client("search-indexer", "search", 4_000_000, 0.95, 0.01, key="consumer_byte_rate"),
    Client("orders-api", "web", 200_000, 0.85, 0.03),
    Client("reports", "batch", 500_000, 0.42, 0.46),
    Client("clickstream", "web", 8_000_000, 0.64, 0.02),
    Client("payments", "payments", 1_000_000, 0.23, 0.02),
    Client("billing", "finance", 2_000_000, 0.11, 0.01, key="consumer_byte_rate"),
    Client("audit", "security", None, 0.0),
)

_USAGE = """
INSERT INTO headroom.quota_usage (cluster, quota_key, ts, user, client_id, broker_id, bytes, rate, throttle_ms,
    throttled_requests, source, gateway_id, interval_ms, muted_ms, `limit`, limit_known, matched_entity)
SELECT '{cluster}', '{key}', toStartOfSecond(now64(3)) - {behind} + number AS at, '{user}', '{client}', 1,
    toUInt64({rate}), {rate} * (1 + {burst} * sin(number / 7)), {throttle}, {throttle} > 0, 'gateway', 'example', 1000,
    {muted}, {limit}, 1, '{entity}'
FROM numbers({seconds})
"""


class Example:
    """A context manager: `broker`, `served`, `environment` of the commands, and `fill` for what they are about."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headroom-example-")))
            java = find_java()
            broker = stack.enter_context(LocalCluster(java, kafka_libs(java)))
            self.broker = broker.bootstrap
            self.served = stack.enter_context(Served(self.directory, "--upstream", self.broker, "--cluster", CLUSTER))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which commands find this service instead of one at the default addresses."""
        found = {"HEADROOM_URL": f"http://{self.served.sql}", "HEADROOM_HTTP_ADDRESS": self.served.http}
        found["HEADROOM_DATA"] = str(self.directory / "data")
        return os.environ | found | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, *command: str) -> None:
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def fill(self, ahead_s: int = AHEAD_S) -> None:
        """Quotas, usage, a subscription, a push that cannot be decoded. Returns when a minute has its levels."""
        for client in CLIENTS:
            if client.limit is not None:
                who = ["--user", client.user, "--client-id", client.client_id]
                limit = ["--add", f"{client.key}={client.limit:.0f}"]
                self.run(*_HEADROOM, "quotas", "alter", "--bootstrap-server", self.broker, *who, *limit)
            self._write_usage(client, ahead_s)
        every = ["--name", "all", "--metrics", "org.apache.kafka.", "--interval", "60000"]
        self.run(*_HEADROOM, "subscriptions", "alter", "--bootstrap-server", self.broker, *every)
        self._push_garbage()
        eventually(
            lambda: len(rows(self.served.sql, "SELECT 1 FROM headroom.headroom_now")), lambda n: n >= len(CLIENTS)
        )

    def _write_usage(self, client: Client, ahead_s: int) -> None:
        statement = _USAGE.format(
            cluster=CLUSTER,
            key=client.key,
            user=client.user,
            client=client.client_id,
            behind=BEHIND_S,
            seconds=BEHIND_S + ahead_s,
            rate=(client.limit or 0.0) * client.mean or 48_000.0,
            burst=client.burst,
            throttle=client.muted_ms * 1.7,
            muted=client.muted_ms,
            limit="NULL" if client.limit is None else client.limit,
            entity="" if client.limit is None else f"user={client.user}, client-id={client.client_id}",
        )
        password = (self.directory / "data" / "clickhouse" / "writer.password").read_text().strip()
        headers = {"X-ClickHouse-User": "headroom_writer", "X-ClickHouse-Key": password}
        request = urllib.request.Request(f"http://{self.served.sql}/", statement.encode(), headers)
        urllib.request.urlopen(request, timeout=60).close()

    def _push_garbage(self) -> None:
        """A push whose payload is no protobuf: it ends in quarantine."""

        def pushed() -> int:
            client = wire.connect(self.served.address[1])
            client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0", b"orders-api"))
            client.sendall(wire.push(*wire.subscribed(wire.read_frame(client)), 0, b"\xff\xff\xff"))
            code = wire.error_code(wire.read_frame(client))
            client.close()
            return code

        eventually(pushed, lambda code: code == 0)
        eventually(lambda: self.quarantined, lambda found: found != "")

    @property
    def quarantined(self) -> str:
        """The beginning of the id of a push in quarantine."""
        listed = subprocess.run(
            [*_HEADROOM, "quarantine", "list", "--output", "json"],
            env=self.environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(listed.stdout or b"[]")
        return str(found[0]["id"]) if found else ""


_HEADROOM = (sys.executable, "-m", "headroom")


def pictures() -> None:
    """docs/images."""
    with Example() as example:
        example.fill(ahead_s=300)
        minutes = "SELECT count(DISTINCT window_start) FROM headroom.headroom_minutes"
        sql = example.served.sql
        eventually(lambda: int(rows(sql, minutes)[0][0]), lambda n: n >= MINUTES, within_s=300, every_s=2)
        detail = urllib.parse.urlencode({"cluster": CLUSTER, "user": "web", "client_id": "orders-api"})
        question = {"cluster": CLUSTER, "user": "web", "client_id": "orders-api", "quota_key": "producer_byte_rate"}
        asked = urllib.parse.urlencode({**question, "value": 160_000, "since": "15m"})
        pages = {"overview": "", "client": f"clients/detail?{detail}", "what-if": f"quotas/what-if?{asked}"}
        IMAGES.mkdir(exist_ok=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            for name, path in pages.items():
                settle(page, f"http://{example.served.http}/{path}")
                page.screenshot(path=IMAGES / f"{name}.png")
            browser.close()


if __name__ == "__main__":
    pictures()
