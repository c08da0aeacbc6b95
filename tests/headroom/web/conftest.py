"""Shared fixtures of the page tests: a Headroom whose store has clients at every level, and a real Chromium."""

import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

from exporters.model import QuotaLimit, TopicSample
from headroom.cli.serve_api import ask
from telemetry.ingest.arrow_tables import limits_table, topics_table
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.levels import now_ms, sample, write
from tests.kit.serving import Served, config_file, eventually

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">' + 16 * "unbroken"
HTTP = httpx.Client(timeout=90)

# A subscription with a name, metrics and a selector that are not plain text.
_SUBSCRIPTIONS = f"""
{HOSTILE!r}: {{metrics: {HOSTILE!r}, match: 'client_id=.*<script>.*'}}
all: {{metrics: org.apache.kafka., interval.ms: 1000}}
"""

# A team of plain names, and one whose owner writes what browsers would run.
_OWNERS = f"""
owners:
  - {{team: payments, user: alice, client-id: app-w*, contact: pay@example.org, page: "https://wiki.example.org/pay"}}
  - {{team: shop, topic: "order*"}}
  - {{team: {HOSTILE!r}, user: {HOSTILE!r}, topic: {HOSTILE!r}, contact: {HOSTILE!r}, page: "javascript:alert(3)"}}
"""


# What the rule has that decides about alice's clients.
OF_ALICE: dict[str, Any] = {"limit": 1e5, "matched_entity": "user=alice, client-id=<default>", "bucket_user": "alice"}
_TELEMETRY = (
    """INSERT INTO headroom.client_instances (cluster, client_instance_id, client_id, principal, software_name,
           software_version, source_address, first_seen, last_seen, pushes, points)
       SELECT 'prod', {instance:UUID}, {name:String}, {user:String}, {name:String}, {name:String}, '10.0.0.1', now64(3),
           now64(3), 1, 1""",
    """INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, client_instance_id, series_id, value)
       SELECT 'prod', {metric:String}, now64(3), {user:String}, {name:String}, {instance:UUID}, {number:UInt64}, 1""",
    """INSERT INTO headroom.points (cluster, metric, ts, principal, client_id, client_instance_id, series_id, value)
       SELECT 'prod', 'org.apache.kafka.producer.record.queue.time.max', now64(3) + (number - 120) * 30, {user:String},
           {name:String}, {instance:UUID}, {number:UInt64} + 1000, 2500 FROM numbers(240)""",
    """INSERT INTO headroom.series (series_id, cluster, metric, principal, client_id, client_instance_id, attributes,
           last_seen)
       SELECT {number:UInt64}, 'prod', {metric:String}, {user:String}, {name:String}, {instance:UUID},
           map('group', {name:String}), now64(3)""",
    """INSERT INTO headroom.throttle_forecast (cluster, source, quota_key, user, client_id, broker_id, made_at, limit,
           utilization, hits_limit_at, earliest, latest, confidence, p10, p50, p90, reason)
       SELECT 'prod', 'gateway', 'producer_byte_rate', 'alice', {name:String}, arrayJoin([1, 2]), now64(3), 1e5, 0.85,
           now64(3) + INTERVAL 1 HOUR, now64(3) + INTERVAL 30 MINUTE, NULL, 0.7, arrayWithConstant(36, 0.8),
           arrayMap(step -> 0.85 + step / 100, range(36)), arrayMap(step -> 0.9 + step / 50, range(36)),
           {name:String}""",
    """INSERT INTO headroom.quota_suggestions (cluster, source, quota_key, kind, entity, user, client_id, made_at,
           from_time, to_time, limit, suggested_limit, clients, days, confidence, throttled_share, reason)
       SELECT 'prod', 'gateway', 'producer_byte_rate', 'own', {name:String}, {user:String}, {name:String},
           toDateTime64(toStartOfDay(now()), 3), now64(3), now64(3), NULL, 2e5, 1, 7, 'high', 0.01, {name:String}""",
    """INSERT INTO headroom.job_runs (job, run_id, run_version, status, started_at, error)
       SELECT 'quota-headroom', {instance:UUID}, 1, 'failed', now64(3), {name:String}""",
)


def refreshed(page: Page) -> None:
    assert page.evaluate(
        "() => new Promise(done => document.addEventListener('headroom:refreshed', () => done(true), {once: true}))"
    )


def write_usage(store: QueriedStore) -> None:
    """Clients at every level, one of them with a hostile name."""
    end_ms = now_ms() // 1000 * 1000
    shares = {"app-ok": 0.2, "app-watch": 0.7, "app-warn": 0.85, "app-critical": 0.99, "app-throttled": 1.0}
    for number, (name, share) in enumerate({**shares, HOSTILE: 0.9}.items()):
        user = HOSTILE if name == HOSTILE else "alice"
        client = {**OF_ALICE, "user": user, "client_id": name, "bucket_client_id": name, "broker_id": 1 + number % 2}
        rows = []
        for ago in range(-3600, 3600):  # an hour back, and one ahead: other tests run between those of the pages
            muted_ms = 400 if name == "app-throttled" and ago % 5 == 0 else 0
            usage = {"bytes": int(share * 1e5), "throttle_ms": float(muted_ms), "muted_ms": muted_ms}
            rows.append(sample("prod", end_ms - ago * 1000, share * 1e5, **usage, **client))
        write(store, rows, f"usage-{number}")
    limits = [
        QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", end_ms - 3_600_000, 1e5),
        QuotaLimit("hostile", HOSTILE, HOSTILE, "", "producer_byte_rate", end_ms - 10_000, 1e5),
    ]
    store.insert("quota_limits", limits_table(limits, end_ms), token="limits")
    # An instance that pushes a metric, a forecast and a failed job: of plain names, and of hostile ones.
    for number, (user, name) in enumerate([("alice", "app-warn"), (HOSTILE, HOSTILE)]):
        values = {"user": user, "name": name, "metric": f"org.apache.kafka.{name}.throttle", "number": number}
        values["instance"] = str(uuid.UUID(int=(4 << 76) + number))
        for statement in _TELEMETRY:
            store.query(statement, values)
    # The topics of a client, 3 to 1 and from a sample of 1 %, and those of one with a hostile name.
    topics = [
        TopicSample("prod", minute_ms, 60_000, user, client_id, topic, "in", nbytes, 100, 0.01, "gw")
        for minute_ms in range(now_ms() // 60_000 * 60_000 - 600_000, now_ms() + 3_600_000, 60_000)
        for user, client_id, topic, nbytes in (
            ("alice", "app-warn", "orders", 3_000), ("alice", "app-warn", "refunds", 1_000),
            (HOSTILE, HOSTILE, HOSTILE, 10),
        )
    ]  # fmt: skip
    store.insert("topic_samples", topics_table(topics, now_ms()), token="topics")


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """A server of their own: pages show all clusters."""
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        yield running


@pytest.fixture(scope="session")
def serving(clickhouse: RunningClickHouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A Headroom whose store has usage of clients at every level."""
    write_usage(clickhouse.store)
    directory = tmp_path_factory.mktemp("web")
    (directory / "subscriptions.yaml").write_text(_SUBSCRIPTIONS)
    (directory / "owners.yaml").write_text(_OWNERS)
    files: dict[str, Any] = {name: str(directory / f"{name}.yaml") for name in ("subscriptions", "owners")}
    with Served(directory, *config_file(directory, **files), environment=clickhouse.environment) as running:
        eventually(running.ready, lambda found: found[0] == 200)
        eventually(lambda: ask(running.http, "/api/v1/headroom", {}), bool)  # a minute was computed
        yield running


@pytest.fixture(scope="session")
def served(serving: Served) -> str:
    """Its HTTP address."""
    return f"http://{serving.http}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of each module: while it is open, Playwright's event loop forbids asyncio.run() in this thread."""
    chromium = shutil.which("chromium")
    assert chromium, "this test needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


class Watched:
    """A page and its errors: of the console, of scripts, dialogs, failed requests with their reason: requests that a
    navigation ends fail with ERR_ABORTED, which is no error of the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("requestfailed", lambda request: self.faults.append(f"failed {request.url}: {request.failure}"))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"{message.text} {message.location.get('url', '')}")

    def _dismiss(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    found = Watched(browser.new_page(viewport={"width": 1280, "height": 900}))
    yield found
    found.page.close()
    assert [fault for fault in found.faults if "ERR_ABORTED" not in fault] == []
