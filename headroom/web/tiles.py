"""The state of Headroom in five tiles with their last hour, for people: page Status and `headroom status`. Sans-I/O."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quota_metrics.amounts import bytes_text

_FULL: Final = 0.8  # of the spool; the alert HeadroomSpoolFilling begins there
_FILLING: Final = 0.2
_SOON_S: Final = 7_200.0
_UNITS = (("days", 172_800.0, 86_400.0), ("hours", 7_200.0, 3_600.0), ("minutes", 120.0, 60.0))
_MOST_S: Final = 86_400.0 * 1_000
TREND_STEP_S: Final = 60.0
TREND_STEPS: Final = 60
# What the trend of each tile is of, in the order of the tiles.
TRENDS: Final = {
    "brokers and gateway": "client connections",
    "pushes": "pushes a second",
    "ingest lag": "seconds that the oldest record waited",
    "spool": "bytes in the spool",
    "store": "records written a second",
}


class Reading(NamedTuple):
    """What trends are made of. `pushes` and `written` are counts since the start, the others are of the moment."""

    connections: float = 0.0
    pushes: float = 0.0
    oldest_s: float = 0.0
    spool_bytes: float = 0.0
    written: float = 0.0


class _Step:
    """The readings of up to TREND_STEP_S."""

    def __init__(self, began_s: float, before: Reading) -> None:
        self.began_s = began_s
        self._until_s = began_s
        self._before = self._last = before
        self._highest = Reading()

    def note(self, now_s: float, reading: Reading) -> None:
        self._until_s, self._last, self._highest = now_s, reading, Reading(*map(max, self._highest, reading))

    @property
    def last(self) -> tuple[float, Reading]:
        return self._until_s, self._last

    def values(self) -> tuple[float, ...]:
        """One value for each of TRENDS: the highest of the moments, and rates."""
        elapsed_s, high = self._until_s - self.began_s, self._highest
        pushes, written = (
            max(0.0, last - before) / elapsed_s if elapsed_s > 0 else 0.0
            for before, last in ((self._before.pushes, self._last.pushes), (self._before.written, self._last.written))
        )
        return (high.connections, pushes, high.oldest_s, high.spool_bytes, written)


class Trends:
    """The last hour in TREND_STEPS steps, in memory; a start of Headroom begins anew."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=TREND_STEPS)

    def note(self, now_s: float, reading: Reading) -> None:
        """`now_s`: monotonic."""
        if not self._steps:
            self._steps.append(_Step(now_s, reading))
        elif now_s > self._steps[-1].began_s + TREND_STEP_S:
            self._steps.append(_Step(*self._steps[-1].last))
        self._steps[-1].note(now_s, reading)

    def values(self) -> dict[str, list[float]]:
        """Oldest first, by the name of the tile; the last step is not over yet. Empty before the first reading."""
        columns = zip(*(step.values() for step in self._steps), strict=True)
        return {name: [round(value, 3) for value in column] for name, column in zip(TRENDS, columns, strict=False)}


class Tile(NamedTuple):
    """`level`: ok, warn or critical. `runbook`: its name in docs/runbooks; empty when the level is ok."""

    name: str
    level: str
    text: str
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What the tiles are about. Counts are of the last minutes, `window_s` long."""

    reason: str = ""  # why it is not ready
    brokers: int | None = None  # None: no cluster
    connections: float = 0.0
    upstream_failures: float = 0.0
    left_out: float = 0.0  # exchanges that were not metered
    usage_lost: float = 0.0
    window_s: float = 0.0
    pushes: float = 0.0
    over_budget: float = 0.0  # requests refused because their payer was over its budget
    dropped: float = 0.0
    oldest_s: Mapping[str, float] = field(default_factory=dict)
    late_s: float = 30.0
    spool_bytes: float = 0.0
    spool_max_bytes: float = 0.0
    arrived_bytes: float = 0.0
    store_up: bool = True


def tiles(state: ServiceState) -> list[Tile]:
    """Brokers and gateway, pushes, ingest lag, spool, store."""
    return [_gateway(state), _pushes(state), _lag(state), _spool(state), _store(state)]


def tile_rows(state: ServiceState, trends: Mapping[str, Iterable[float]]) -> list[dict[str, Any]]:
    """As `/api/v1/status` has them, each with its `trend`."""
    return [
        tile._asdict()
        | {"trend": {"of": TRENDS[tile.name], "step_s": TREND_STEP_S, "values": list(trends.get(tile.name, ()))}}
        for tile in tiles(state)
    ]


def _gateway(state: ServiceState) -> Tile:
    brokers = "no cluster" if state.brokers is None else f"{state.brokers:,} brokers"
    text = f"{brokers}, {state.connections:,.0f} client connections"
    if state.usage_lost:
        lost = f"{state.usage_lost:,.0f} rows of usage were lost"
        return Tile("brokers and gateway", "critical", f"{text}; {lost}", "HeadroomUsageLost")
    if state.left_out:
        unmetered = f"{state.left_out:,.0f} exchanges were not metered"
        return Tile("brokers and gateway", "warn", f"{text}; {unmetered}", "HeadroomUsageLeftOut")
    if state.reason.startswith("network process"):
        return Tile("brokers and gateway", "critical", f"{text}; {state.reason}", "HeadroomRestarts")
    if state.upstream_failures:
        text = f"{text}; {state.upstream_failures:,.0f} failed attempts to connect to a broker"
    return Tile("brokers and gateway", "ok", text)


def _pushes(state: ServiceState) -> Tile:
    rate = state.pushes / state.window_s if state.window_s else 0.0
    text = f"{rate:,.1f} a second"
    if state.dropped:
        return Tile("pushes", "critical", f"{text}; {state.dropped:,.0f} were dropped", "HeadroomRecordsDropped")
    if state.over_budget:
        over = f"{state.over_budget:,.0f} requests refused, their payer is over its budget"
        return Tile("pushes", "warn", f"{text}; {over}", "HeadroomPayerOverBudget")
    return Tile("pushes", "ok", f"{text}, none refused or dropped")


def _lag(state: ServiceState) -> Tile:
    ages = ", ".join(f"{kind} {age_s:,.1f} s" for kind, age_s in state.oldest_s.items())
    is_late = any(age_s > state.late_s for age_s in state.oldest_s.values())
    text = f"oldest not stored: {ages or 'none'}"
    return Tile("ingest lag", "critical", text, "HeadroomDataLate") if is_late else Tile("ingest lag", "ok", text)


def _spool(state: ServiceState) -> Tile:
    """How long it lasts if nothing were stored, at the rate at which records arrive."""
    used = f"{bytes_text(state.spool_bytes)} of {bytes_text(state.spool_max_bytes)}"
    rate = state.arrived_bytes / state.window_s if state.window_s else 0.0
    room = max(0.0, state.spool_max_bytes - state.spool_bytes)
    lasts_s = room / rate if rate > 0 else _MOST_S
    text = f"{used}, nothing arrives" if rate <= 0 else f"{used}, {span_text(lasts_s)} at this rate"
    share = state.spool_bytes / state.spool_max_bytes if state.spool_max_bytes else 0.0
    if share > _FULL or (share > _FILLING and lasts_s < _SOON_S):
        return Tile("spool", "critical" if share > _FULL else "warn", text, "HeadroomSpoolFilling")
    return Tile("spool", "ok", text)


def _store(state: ServiceState) -> Tile:
    if not state.store_up:
        return Tile("store", "critical", state.reason or "does not accept rows", "HeadroomStoreDown")
    if state.reason and not state.reason.startswith("network process"):
        return Tile("store", "critical", state.reason, "HeadroomIngestStalled")
    return Tile("store", "ok", "accepts rows")


def span_text(span_s: float) -> str:
    """`11 days`, `5 hours`, `3 minutes`, `40 seconds`; at most `1000 days or more`."""
    if span_s >= _MOST_S:
        return "1000 days or more"
    for unit, least_s, size_s in _UNITS:
        if span_s >= least_s:
            return f"{span_s / size_s:.0f} {unit}"
    return f"{span_s:.0f} seconds"
