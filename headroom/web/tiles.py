"""The state of Headroom in five tiles, for people: page Status and `headroom status`. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quota_metrics.amounts import bytes_text

_FULL: Final = 0.8  # of the spool; the alert HeadroomSpoolFilling begins there
_FILLING: Final = 0.2
_SOON_S: Final = 7_200.0
_UNITS = (("days", 172_800.0, 86_400.0), ("hours", 7_200.0, 3_600.0), ("minutes", 120.0, 60.0))
_MOST_S: Final = 86_400.0 * 1_000


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


def tile_rows(state: ServiceState) -> list[dict[str, Any]]:
    """As `/api/v1/status` has them."""
    return [tile._asdict() for tile in tiles(state)]


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
