"""When levels are computed, over a store and a clock that are not there."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import pytest

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.errors import StoreError
from headroom.server.processes.level_schedule import LevelSchedule
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.minutes.records import statement
from quota_metrics.verdict.thresholds import Thresholds

TIMEOUT_EXCEEDED = 159


class FakeStore:
    """`changed`: the rows of each minute that received rows lately; `newest_s`: the end of what gateways stored;
    `since_ms`: the last request for such minutes."""

    def __init__(self) -> None:
        self.changed: dict[int, int] = {}
        self.newest_s = self.since_ms = 0
        self.thresholds: list[Mapping[str, Any]] = []
        self.services: set[str] = set()

    def rows(self, sql: str, parameters: Mapping[str, Any] = {}) -> list[Mapping[str, Any]]:
        if sql == statement("thresholds"):
            return self.thresholds
        if sql == statement("services"):
            return [{"service": service} for service in self.services]
        if sql == statement("newest_second"):
            return [{"end_s": self.newest_s, "rows": 1}]
        assert sql == statement("changed_minutes")
        self.since_ms = parameters["since_ms"]
        within = range(parameters["first_s"], parameters["last_s"] + 1)
        return [{"window_s": at, "rows": rows} for at, rows in self.changed.items() if at in within]

    def command(self, sql: str, parameters: Mapping[str, Any]) -> None:
        if "headroom_services" in sql:
            self.services.add(parameters["service"])
        else:
            self.thresholds = [parameters]


class Service:
    """A service at 1,000,000 s. The minutes from 999,900 s on and before have ended."""

    def __init__(self, store: FakeStore, name: str = "a") -> None:
        self.now_s = 1_000_000.0
        self.minutes: list[int] = []
        self.last: list[float] = []  # starts of 60 seconds that are shown before they are a minute
        self.reported: list[int] = []
        self.in_force: list[Thresholds] = []
        self.took_s = 0.0
        self.fault: Callable[[bool], StoreError | None] = lambda _: None
        levels = cast(LiveLevels, self)
        self.schedule = LevelSchedule(
            cast(ClickHouse, store), levels, name, self.reported.append, lambda: int(self.now_s * 1000)
        )

    def compute_minute(self, start_s: int, thresholds: Thresholds, *, telemetry: bool = True) -> None:
        self._compute(telemetry)
        self.minutes.append(start_s)
        self.in_force.append(thresholds)

    def compute_last(self, start_ms: int, thresholds: Thresholds, *, telemetry: bool = True) -> None:
        self._compute(telemetry)
        self.last.append(start_ms / 1000)

    def _compute(self, telemetry: bool) -> None:
        self.now_s += self.took_s
        if (fault := self.fault(telemetry)) is not None:
            raise fault

    def run(self, seconds: float, *, step_s: float = 0.5) -> None:
        """Steps, as the levels process does."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += step_s
            self.schedule.step()


def test_a_minute_is_computed_once_and_again_when_rows_arrive_late() -> None:
    store = FakeStore()
    service = Service(store)
    store.changed = {999_900: 5, 999_960: 1}
    service.run(5)
    assert service.minutes == [999_900]  # the minute from 999,960 on has not ended
    assert store.thresholds == [Thresholds()._asdict()]
    store.changed[999_900] += 1
    service.run(4)
    assert service.minutes == [999_900]  # not at once
    service.run(12)
    assert service.minutes == [999_900] * 2
    service.run(4)
    assert service.minutes == [999_900, 999_900, 999_960]  # four seconds after its end
    assert service.reported[0] == 999_900
    assert service.reported[-1] == 999_960


def test_the_newest_minute_is_first_and_changes_the_memory_of_those_after_it() -> None:
    store = FakeStore()
    service = Service(store)
    store.changed = {999_840: 5, 999_900: 5}
    service.run(12)
    assert service.minutes == [999_900, 999_840]
    service.run(15)
    assert service.minutes == [999_900, 999_840, 999_900, 999_960]  # whose memory has changed
    service.run(60)
    store.changed = {999_000: 7}  # an import of an hour that was empty before
    service.run(40)
    assert service.minutes[4:] == [1_000_020, 999_000]


def test_the_last_seconds_are_computed_between_minutes() -> None:
    store = FakeStore()
    service = Service(store)
    service.run(120)
    assert service.minutes == [999_900, 999_960, 1_000_020]
    assert all(at_s % 60 for at_s in service.last)
    shown = sorted([*service.minutes, *service.last])
    assert all(after - before <= 10.5 for before, after in pairwise(shown[1:]))  # the minutes put nothing off
    assert sorted(service.reported) == shown
    store.newest_s = 1_000_077  # what all gateways have stored
    service.run(11)
    assert service.last[-1] == 1_000_017


@pytest.mark.parametrize("took_s", [0.2, 0.9, 1.1])
def test_what_gateways_stored_is_shown_soon(took_s: float) -> None:
    store = FakeStore()
    service = Service(store)
    service.took_s = took_s
    shown_at: dict[int, float] = {}  # by the second before which the rows are
    service.run(10)
    while service.now_s < 1_000_600:
        store.newest_s = int(service.now_s) - 1  # a second later they are in the store
        service.run(0.1)
        for end_s in range(1_000_060, service.reported[-1] + 61):
            shown_at.setdefault(end_s, service.now_s)
    assert len(shown_at) > 500
    assert max(at_s - end_s for end_s, at_s in shown_at.items()) <= 15


def test_the_last_seconds_take_at_most_an_eighth_of_the_time() -> None:
    service = Service(FakeStore())
    service.took_s = 2.0
    service.run(200)
    assert len(service.last) > 5
    assert all(after - before >= 16 for before, after in pairwise(service.last))
    assert service.minutes == [999_900, 999_960, 1_000_020, 1_000_080]  # these do not wait


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    store = FakeStore()
    service = Service(store)
    service.now_s += 3600
    service.run(100)
    service.minutes.clear()
    service.last.clear()
    service.now_s = 1_000_000.0
    store.changed = {999_000: 5}
    store.services.clear()
    service.run(1)
    assert store.since_ms < 999_101_000
    service.run(99)
    assert service.minutes == [999_900, 999_000, 999_960, 1_000_020]
    assert len(service.last) >= 9
    assert store.services == {"a"}


def test_a_minute_that_failed_is_computed_again_after_a_pause() -> None:
    service = Service(FakeStore())
    service.fault = lambda _: StoreError("away")
    with pytest.raises(StoreError):
        service.run(1)
    with pytest.raises(StoreError):  # the last seconds
        service.run(1)
    service.fault = lambda _: None
    service.run(8)
    assert service.minutes == []  # not at once: a minute that is too much for the store would keep it busy
    service.run(3)
    assert service.minutes == [999_900]


def test_levels_do_without_telemetry_that_takes_too_long() -> None:
    """For ten minutes; then it is read again. A store that is away does not count."""
    service = Service(FakeStore())
    service.fault = lambda telemetry: StoreError("too long", TIMEOUT_EXCEEDED) if telemetry else None
    with pytest.raises(StoreError):
        service.run(1)
    service.run(560)
    assert service.minutes[-1] == 1_000_440
    with pytest.raises(StoreError):  # from 1,000,500 s on
        service.run(40)
    away = Service(FakeStore())
    away.fault = lambda telemetry: StoreError("away") if telemetry else None
    for _ in range(3):
        with pytest.raises(StoreError):
            away.run(20)


def test_of_several_services_one_computes_until_it_is_gone() -> None:
    store = FakeStore()
    services = [Service(store, name) for name in ("a", "b", "c")]
    for service in services:
        service.run(0.5)  # all of them are there
        service.minutes.clear()
    for service in services:
        service.run(60)
    (leader,) = [service for service in services if service.minutes]
    others = [service for service in services if service is not leader]
    assert [service.last for service in others if len(service.last) > 1] == []
    store.services.clear()
    for _ in range(20):
        for service in others:
            service.run(6)
    taking_over = [service for service in others if service.minutes]
    assert len(taking_over) == 1
    assert taking_over[0].minutes[-1] > leader.minutes[-1]


def test_a_service_that_takes_over_computes_a_quarter_of_an_hour_again() -> None:
    store = FakeStore()
    store.services = {"gone soon"}
    service = Service(store)
    service.run(3600)
    store.services.clear()
    while not service.minutes:
        service.run(0.5)
    assert store.since_ms > 1_002_700_000


def test_changed_thresholds_are_stored_and_hold_from_the_next_minute_on() -> None:
    store = FakeStore()
    service = Service(store)
    service.run(5)
    service.schedule.thresholds = Thresholds(watch=0.7)
    service.run(25)
    assert store.thresholds == [Thresholds(watch=0.7)._asdict()]
    assert list(zip(service.minutes, service.in_force, strict=True)) == [
        (999_900, Thresholds()),
        (999_960, Thresholds(watch=0.7)),
    ]


def test_minutes_of_more_than_five_hours_ago_are_forgotten() -> None:
    store = FakeStore()
    service = Service(store)
    store.changed = {999_900 - 6 * 3600: 5}
    service.run(60)
    assert service.minutes == [999_900, 999_960]
