"""When levels are computed: each minute when it has ended and again when more of its rows arrive, and every ten seconds
the last 60 seconds.

Of several services over one store one computes for all and says every ten seconds that it is there; the others only
look for that, so they cost next to nothing. When it dies, another one takes its place: the first by name of those that
begin to compute, so no lock is needed. A computation that two of them did is harmless, because the newest counts.
"""

from collections.abc import Callable
from typing import Final

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.errors import StoreError
from quota_metrics.minutes.live import LiveLevels
from quota_metrics.minutes.records import statement
from quota_metrics.verdict.thresholds import MEMORY_WINDOWS, Thresholds
from quota_metrics.verdict.window import WINDOW_S

_COMPLETE_AFTER_S: Final = 4  # by then the rows of a minute are stored
_REACH_S: Final = 5 * 3600  # minutes before are not computed: their rows are about to expire
_AT_START_MS: Final = 900_000  # rows that arrived while no service computed
_MARGIN_MS: Final = 60_000  # an insert in progress may become visible after its received_at
_AGAIN_MS: Final = 10_000  # the shortest pause before a minute is computed again
_LOOK_MS: Final = 10_000  # between two looks for rows that arrived late
_BEAT_MS: Final = 10_000  # between two looks at headroom_services, and two rows of the service that computes
_GONE_MS: Final = 25_000  # a service that was not seen for so long is gone
_PAUSES: Final = 8  # the last seconds take at most an eighth of the time
_AFTER_MINUTE: Final = 4  # after a minute no late one is computed for four times as long as it took
# After a computation that failed: more telemetry than it can read delays no level for long.
_WITHOUT_TELEMETRY_S: Final = 600


class LevelSchedule:
    """`service`: the name of this run of the service. `computed` gets the start (s) of what is shown now. `now_ms`:
    wall clock. All methods raise StoreError."""

    def __init__(
        self,
        store: ClickHouse,
        levels: LiveLevels,
        service: str,
        computed: Callable[[int], None],
        now_ms: Callable[[], int],
        every_ms: int = 10_000,
    ) -> None:
        self.thresholds = Thresholds()
        self._store = store
        self._levels = levels
        self._service = service
        self._computed = computed
        self._now_ms = now_ms
        self._every_ms = every_ms
        self._stored: Thresholds | None = None
        self._is_leader = False
        self._since_ms = now_ms() - _AT_START_MS
        self._rows: dict[int, int] = {}  # rows of each minute when it was computed
        self._pending: dict[int, int] = {}  # minutes to compute, and their rows
        self._reset_times()

    def _reset_times(self) -> None:
        self._beat_at_ms = self._looked_at_ms = self._last_at_ms = 0
        self._tried_s = 0  # the newest minute that was tried
        self._telemetry_from_s = 0  # what begins before is computed without telemetry
        self._not_before_ms = 0  # for minutes that came late, and for another try

    def step(self) -> None:
        """Computes what is due: the minute that has just ended, the last 60 seconds, or a minute that changed."""
        if self._stored != self.thresholds:  # jobs read them in the store
            stored, thresholds = self._store.rows(statement("thresholds")), self.thresholds
            if not stored or Thresholds(**stored[0]) != thresholds:
                names = ", ".join(thresholds._fields)
                places = ", ".join(f"{{{name}:Float64}}" for name in thresholds._fields)
                self._store.command(f"INSERT INTO level_thresholds ({names}) SELECT {places}", thresholds._asdict())
            self._stored = thresholds
        now_ms = self._now_ms()
        if now_ms < self._beat_at_ms:  # the clock was set back
            self._reset_times()
            self._since_ms = min(self._since_ms, now_ms - _AT_START_MS)
        if now_ms - self._beat_at_ms >= _BEAT_MS:
            self._beat(now_ms)
        if not self._is_leader:
            return
        newest_s = (now_ms // 1000 - WINDOW_S - _COMPLETE_AFTER_S) // WINDOW_S * WINDOW_S
        if newest_s > self._tried_s or now_ms - self._looked_at_ms >= _LOOK_MS:
            self._look(newest_s)
        if newest_s in self._pending and newest_s != self._tried_s:
            self._compute_minute(newest_s, newest_s)
        elif now_ms >= self._last_at_ms:
            self._compute_last(now_ms)
        elif self._pending and now_ms >= self._not_before_ms:
            self._compute_minute(min(self._pending), newest_s)

    def _beat(self, now_ms: int) -> None:
        """Finds out whether this service computes, and says that it does."""
        if not self._is_leader:  # until now others computed, if any
            self._since_ms = max(self._since_ms, now_ms - _AT_START_MS)
        if self._is_leader or not self._others():
            self._store.command(
                "INSERT INTO headroom_services (service) SELECT {service:String}", {"service": self._service}
            )
            # Others may have begun at the same time. Names of runs are drawn.
            self._is_leader = all(self._service < other for other in self._others())
        self._beat_at_ms = now_ms

    def _others(self) -> set[str]:
        """The other services that said lately that they compute."""
        computing = self._store.rows(statement("services"), {"gone_ms": _GONE_MS})
        return {str(row["service"]) for row in computing} - {self._service}

    def _look(self, newest_s: int) -> None:
        self._looked_at_ms = began_ms = self._now_ms()
        first_s = newest_s - _REACH_S
        span = {"since_ms": self._since_ms, "first_s": first_s, "last_s": newest_s}
        changed = {row["window_s"]: row["rows"] for row in self._store.rows(statement("changed_minutes"), span)}
        self._since_ms = max(self._since_ms, began_ms - _MARGIN_MS)
        if newest_s not in self._rows:
            changed.setdefault(newest_s, 0)  # a minute without rows is a part of the memory, too
        self._pending |= {window_s: rows for window_s, rows in changed.items() if rows != self._rows.get(window_s)}
        for minutes in (self._rows, self._pending):
            for window_s in [window_s for window_s in minutes if window_s < first_s]:
                del minutes[window_s]

    def _compute_minute(self, window_s: int, newest_s: int) -> None:
        rows, began_ms = self._pending[window_s], self._now_ms()
        try:
            self._compute(self._levels.compute_minute, window_s, window_s)
            if window_s == newest_s:
                self._computed(window_s)
        finally:
            self._tried_s = max(self._tried_s, window_s)
            ended_ms = self._now_ms()
            self._not_before_ms = ended_ms + max(_AGAIN_MS, _AFTER_MINUTE * (ended_ms - began_ms))
        del self._pending[window_s]
        if rows != self._rows.get(window_s):  # then the memory of the minutes that follow has changed as well
            following = range(window_s + WINDOW_S, window_s + (MEMORY_WINDOWS + 1) * WINDOW_S, WINDOW_S)
            self._pending = {at: self._rows[at] for at in following if at in self._rows} | self._pending
        self._rows[window_s] = rows

    def _compute_last(self, now_ms: int) -> None:
        """The 60 seconds before the newest second that all gateways have stored."""
        began_ms = self._now_ms()
        (newest,) = self._store.rows(statement("newest_second"), {"now_ms": now_ms})
        end_s = int(newest["end_s"]) or now_ms // 1000 - _COMPLETE_AFTER_S
        start_s = end_s - WINDOW_S
        if start_s % WINDOW_S == 0:
            return  # they are a minute, which is computed as such; with the next second they are not
        try:
            if newest["rows"]:
                self._compute(self._levels.compute_last, 1000 * start_s, start_s)
                self._computed(start_s)
        finally:
            self._last_at_ms = began_ms + max(self._every_ms, _PAUSES * (self._now_ms() - began_ms))

    def _compute(self, compute: Callable[..., None], start: int, start_s: int) -> None:
        """Without telemetry for ten minutes after a computation that the server refused or gave up."""
        has_telemetry = start_s >= self._telemetry_from_s
        try:
            compute(start, self.thresholds, telemetry=has_telemetry)
        except StoreError as exc:
            if exc.code and has_telemetry:  # a server that is away is asked again as before
                self._telemetry_from_s = start_s + _WITHOUT_TELEMETRY_S
            raise
