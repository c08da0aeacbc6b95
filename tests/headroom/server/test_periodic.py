"""Periodic tasks: with a bug, and those that record quotas, topics and sensors while spool, disk or brokers fail."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
import structlog
from structlog.testing import capture_logs

from exporters import self_metrics as catalogue
from exporters.clickhouse.errors import StoreError
from exporters.model import Exchange, QuotaLimit, RecordKind, SampledTopics, TopicSample, UsageSample
from exporters.spool.records import decode_rows
from exporters.spool.writer import SpoolFull
from headroom.config.quotas import JmxConfig, JmxTarget
from headroom.server.periodic import PeriodicTask, QuotaRecorder, run_once, run_periodic_tasks
from headroom.server.quotas.jmx_recorder import JmxScraper
from headroom.server.quotas.topic_usage import TopicUsage
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.config.timeline import LimitHistory
from quota_metrics.jmx.scrape import Agent, ScrapeError, Target
from quota_metrics.jmx.sensors import SensorReading
from quota_metrics.kafka.errors import BrokerUnreachableError
from quota_metrics.measure.usage_meter import PRODUCE, UsageMeter
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.wire.topic_bytes import ID_MARK

ALICE = entity_of({"user": "alice"})


class Spool:
    """A spool whose next appends or flushes fail; a flush that fails writes nothing and empties the queue."""

    def __init__(self) -> None:
        self.full = self.broken = False
        self.queued: list[tuple[RecordKind, bytes]] = []
        self.written: list[tuple[RecordKind, bytes]] = []

    def append(self, kind: RecordKind, body: bytes) -> None:
        if self.full:
            raise SpoolFull("cannot queue")
        self.queued.append((kind, body))

    def flush(self) -> None:
        queued, self.queued = self.queued, []
        if self.broken:
            raise OSError(28, "No space left on device")
        self.written += queued

    def limits(self) -> list[QuotaLimit]:
        return [row for _, body in self.written for row in decode_rows(RecordKind.LIMITS, body)]


class Cluster:
    """Quotas that change, and the recorder that follows them."""

    def __init__(self) -> None:
        self.rules: Rules = {}
        self.now_ms = 0
        self.spool = Spool()
        self.meter = UsageMeter("c")
        self._history = LimitHistory("c")
        self.recorder = QuotaRecorder(
            spool=self.spool,  # type: ignore[arg-type] # a double
            meter=self.meter,
            read_changes=self._changes,
            now_ms=lambda: self.now_ms,
        )

    async def _changes(self) -> list[QuotaLimit]:
        return self._history.changes(self.rules, self.now_ms)

    def look(self, value: float | None, now_ms: int) -> None:
        self.rules = {} if value is None else {ALICE: {"producer_byte_rate": value}}
        self.now_ms = now_ms
        asyncio.run(self.recorder.write_limits())

    def use(self) -> None:
        self.meter.exchange(Exchange("alice", "app", "", 1, PRODUCE, 1000, 1, 0, self.now_ms))
        asyncio.run(self.recorder.write_usage())


@pytest.mark.parametrize(("fault", "raised"), [("full", SpoolFull), ("broken", OSError)])
def test_unwritten_changes_are_written_later_with_their_own_time(fault: str, raised: type[Exception]) -> None:
    cluster = Cluster()
    setattr(cluster.spool, fault, True)
    for value, now_ms in ((1.0, 10), (1.0, 20), (2.0, 30), (None, 40)):
        with pytest.raises(raised):
            cluster.look(value, now_ms)
    setattr(cluster.spool, fault, False)
    cluster.look(None, 50)
    assert [(row.valid_from_ms, row.value) for row in cluster.spool.limits()] == [(10, 1.0), (30, 2.0), (40, None)]
    cluster.look(None, 60)
    assert len(cluster.spool.limits()) == 3


def test_unwritten_usage_is_counted_as_lost() -> None:
    cluster = Cluster()
    cluster.spool.full = True
    cluster.use()
    cluster.spool.full, cluster.spool.broken = False, True
    with pytest.raises(OSError):
        cluster.use()
    assert cluster.recorder.rows_lost == 2
    cluster.spool.broken = False
    cluster.use()
    assert (cluster.recorder.rows_lost, len(cluster.spool.written)) == (2, 1)


def test_failing_task_does_not_stop_itself_or_others() -> None:
    steps: Counter[str] = Counter()
    faults: Counter[str] = Counter()

    async def run() -> None:
        enough = asyncio.Event()

        async def sound() -> None:
            steps["sound"] += 1

        async def buggy() -> None:
            steps["buggy"] += 1
            if steps["buggy"] >= 5 and steps["sound"] >= 5:
                enough.set()
            raise KeyError("a bug")

        tasks = [PeriodicTask("buggy", 1, buggy), PeriodicTask("sound", 1, sound)]
        await asyncio.wait_for(run_periodic_tasks(tasks, enough, asyncio.Event().wait(), faults), 60)

    with capture_logs() as logs:
        asyncio.run(run())
    assert faults["buggy"] == steps["buggy"]
    assert faults["sound"] == 0
    assert [entry["task"] for entry in logs].count("buggy") == faults["buggy"].bit_length()


@pytest.mark.parametrize(("code", "level"), [(60, "info"), (81, "info"), (241, "warning"), (0, "warning")])
def test_a_store_without_tables_is_waited_for(code: int, level: str) -> None:
    """A first start is no fault: migrations may take longer than the start does."""

    async def step() -> None:
        try:
            raise StoreError("Code: 60. DB::Exception: Unknown table expression identifier", code)
        except StoreError as exc:
            raise ConnectionError(f"cannot read the stored limits: {exc}") from exc

    with capture_logs() as logs:
        asyncio.run(run_once(PeriodicTask("quotas", 1_000, step)))
    assert [(one["log_level"], one["task"], "error" in one) for one in logs] == [(level, "quotas", level == "warning")]


READING = SensorReading({("Produce", "alice", ""): {"byte-rate": 5.0}})
MANGLED = SensorReading({}, ambiguous=3)


class Brokers:
    """The answers of each broker, in order."""

    def __init__(self, **answers: list[SensorReading | ScrapeError]) -> None:
        self.answers = {int(name.removeprefix("broker_")): given for name, given in answers.items()}
        self.taken: list[tuple[int, float]] = []  # broker and rate
        self.scraper = JmxScraper(
            JmxConfig(
                targets=tuple(JmxTarget(broker_id=n, agent=Agent.JOLOKIA, url="http://h/") for n in self.answers)
            ),
            "c",
            now_ms=lambda: 7,
            take=self._take,
            clients=lambda: {("alice", "app")},
            read=self._read,
        )

    def _read(
        self, target: Target, *, timeout_s: float, max_bytes: int, clients: set[tuple[str, str]]
    ) -> SensorReading:
        assert (timeout_s, max_bytes, clients) == (3.0, 1 << 25, {("alice", "app")})
        answer = self.answers[target.broker_id].pop(0)
        if isinstance(answer, ScrapeError):
            raise answer
        return answer

    def _take(self, rows: Sequence[UsageSample]) -> None:
        self.taken += [(row.broker_id, row.rate) for row in rows]

    def steps(self, count: int) -> list[str]:
        """Runs the steps and returns the log lines."""
        structlog.reset_defaults()
        with capture_logs() as logged:
            for _ in range(count):
                asyncio.run(self.scraper.step())
        return [f"{line['log_level']} {line['broker_id']}" for line in logged]


def test_broker_outage_is_logged_twice_and_does_not_affect_others() -> None:
    down = ScrapeError("refused")
    brokers = Brokers(broker_1=[READING, down, down, READING], broker_2=[READING] * 4)
    assert brokers.steps(4) == ["warning 1", "info 1"]
    assert sorted(brokers.taken) == [(1, 5.0)] * 2 + [(2, 5.0)] * 4
    assert brokers.scraper.failures == 2


def test_ambiguous_names_are_logged_once_and_counted_each_time() -> None:
    brokers = Brokers(broker_1=[MANGLED] * 3)
    assert brokers.steps(3) == ["warning 1"]
    assert brokers.scraper.left_out == {"ambiguous": 9}
    assert brokers.scraper.readings()[catalogue.JMX_WITHOUT_SENSORS] == 0


def test_broker_without_sensors_is_said_once() -> None:
    nothing = SensorReading({})
    brokers = Brokers(broker_1=[nothing, nothing, READING, nothing], broker_2=[READING] * 4)
    assert brokers.steps(4) == ["warning 1"]
    assert brokers.scraper.readings()[catalogue.JMX_WITHOUT_SENSORS] == 1
    assert sorted(brokers.taken) == [(1, 5.0)] + [(2, 5.0)] * 4


MINUTE_MS = 60_000
ORDERS, OTHER = b"\x01" * 16, b"\x02" * 16


class Service:
    """The component, with a cluster that knows one name."""

    def __init__(self) -> None:
        self.now_ms = 10 * MINUTE_MS + 5_000
        self.asked: list[list[bytes]] = []
        self.is_away = False
        self.stored: list[TopicSample] = []
        self.topics = TopicUsage("c", "gw", 0.1, self._names_of, self._write_rows, lambda: self.now_ms)

    def _write_rows(self, kind: RecordKind, rows: Sequence[TopicSample]) -> None:
        assert kind is RecordKind.TOPICS
        self.stored += rows

    async def _names_of(self, topic_ids: Sequence[bytes]) -> Mapping[bytes, str]:
        self.asked.append(list(topic_ids))
        if self.is_away:
            raise BrokerUnreachableError("gone")
        return {ORDERS: "orders"}

    def saw(self, topic: str, nbytes: int) -> None:
        self.topics.meter.observe(SampledTopics("alice", "app", "alice", "in", {topic: nbytes}))

    def write(self, now_ms: int) -> None:
        self.now_ms = now_ms
        asyncio.run(self.topics.write())


def test_rows_end_with_the_minute_and_have_names() -> None:
    service = Service()
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.saw("orders", 20)  # by a version that names it
    service.saw(ID_MARK + OTHER.hex(), 3)
    service.write(11 * MINUTE_MS + 2)
    service.saw(ID_MARK + ORDERS.hex(), 7)
    service.write(11 * MINUTE_MS + 30_000)  # it stops
    first, last = (11 * MINUTE_MS, 55_000), (11 * MINUTE_MS + 30_000, 30_000)
    assert service.stored == [
        TopicSample("c", *first, "alice", "app", "orders", "in", 120, 2, 0.1, "gw"),
        TopicSample("c", *first, "alice", "app", uuid_text(OTHER), "in", 3, 1, 0.1, "gw"),
        TopicSample("c", *last, "alice", "app", "orders", "in", 7, 1, 0.1, "gw"),
    ]
    assert service.asked == [[ORDERS, OTHER]]  # a name is asked for once


def test_without_an_answer_topics_are_written_by_their_ids() -> None:
    service = Service()
    service.is_away = True
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.write(11 * MINUTE_MS)
    service.is_away = False
    service.saw(ID_MARK + ORDERS.hex(), 100)
    service.write(12 * MINUTE_MS)
    assert [row.topic for row in service.stored] == [uuid_text(ORDERS), "orders"]
