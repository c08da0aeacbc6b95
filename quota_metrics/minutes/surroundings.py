"""What is known of clients in 60 seconds beside their usage: telemetry and instances. Read from the store."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from exporters.clickhouse.client import ClickHouse
from quota_metrics.minutes.records import records, statement
from quota_metrics.verdict import client_signals
from quota_metrics.verdict.changes import (
    LONGEST_SILENCE_MS,
    ByteReport,
    SeenInstance,
    changes_before,
    gone_ms,
    network_of,
)
from quota_metrics.verdict.thresholds import CAUSE_WINDOWS
from quota_metrics.verdict.trend import lag_per_min
from quota_metrics.verdict.window import InstanceChange, Surroundings, Telemetry

Named: TypeAlias = tuple[str, str, str]  # cluster, user, client-id

_MINUTE_MS: Final = 60_000
# The names of metrics in telemetry.sql and byte_reports.sql.
TELEMETRY_PARAMETERS: Final[Mapping[str, Any]] = {
    **{name: list(client_signals.metrics_of(name)) for name in client_signals.NAMES},
    "metrics": list(client_signals.METRICS),
}


class ClientFacts(NamedTuple):
    """A row of clients.sql: the instances of a client that were heard of in 15 minutes."""

    software_name: str = ""
    software_version: str = ""
    instances: int = 0
    pushes: int = 0
    last_seen: int = 0  # ms since the epoch


class Around:
    """What was read for 60 seconds that begin in the minute `minute_ms`."""

    def __init__(
        self,
        telemetry: Mapping[Named, Telemetry],
        clients: Mapping[Named, ClientFacts],
        instances: Mapping[Named, Sequence[SeenInstance]],
        reports: Mapping[Named, Sequence[ByteReport]],
        minute_ms: int,
    ) -> None:
        self._telemetry = telemetry
        self._clients = clients
        self._instances = instances
        self._reports = reports
        self._minute_ms = minute_ms

    def client(self, named: Named) -> ClientFacts:
        """What its instances said of themselves."""
        return self._clients.get(named, _NOBODY)

    def of(self, named: Named, *, observed: bool, explains_onset: bool) -> Surroundings:
        """`explains_onset`: whether changes of its instances are looked for."""
        changes: tuple[InstanceChange, ...] = ()
        if explains_onset and named in self._instances:
            changes = changes_before(self._instances[named], self._reports.get(named, ()), self._minute_ms, _MINUTE_MS)
        telemetry = self._telemetry.get(named, _SILENT)
        return Surroundings(telemetry, self.client(named).software_name, changes, observed)


_NOBODY: Final = ClientFacts()
_SILENT: Final = Telemetry()


def read_around(store: ClickHouse, start_ms: int, *, telemetry: bool) -> Around:
    """Of the 60 seconds from `start_ms` on; without `telemetry` nothing of it is read. Raises StoreError."""
    since_ms = start_ms - (CAUSE_WINDOWS + 1) * _MINUTE_MS
    span = {
        **TELEMETRY_PARAMETERS,
        "from_ms": start_ms,
        "to_ms": start_ms + _MINUTE_MS,
        "offset_ms": start_ms % _MINUTE_MS,
        "window_ms": _MINUTE_MS,
        "since_ms": since_ms,
        "seen_from_ms": since_ms - LONGEST_SILENCE_MS,
        "cluster": "",
        "telemetry": int(telemetry),
    }
    reported = {row[:3]: _telemetry(row) for row in _rows(store, "telemetry", span)} if telemetry else {}
    clients = {row[:3]: ClientFacts(*row[3:]) for row in _rows(store, "clients", {})}
    instances: dict[Named, list[SeenInstance]] = defaultdict(list)
    reports: dict[Named, list[ByteReport]] = defaultdict(list)
    for row in _rows(store, "instances", span):
        instances[row[:3]].append(seen_instance(*row[3:]))
    if instances:
        for row in _rows(store, "byte_reports", span):
            reports[row[:3]].append(ByteReport(*row[3:]))
    return Around(reported, clients, instances, reports, start_ms - start_ms % _MINUTE_MS)


def seen_instance(
    instance: str,
    first_ms: int,
    last_ms: int,
    pushes: int,
    terminated: int,
    software_name: str,
    software_version: str,
    address: str,
) -> SeenInstance:
    """From the columns of instances.sql."""
    gone = gone_ms(first_ms, last_ms, pushes, is_terminated=bool(terminated))
    software = f"{software_name} {software_version}".rstrip()
    return SeenInstance(instance, first_ms, gone, software, network_of(address))


def _rows(store: ClickHouse, name: str, parameters: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    return records(store.table(statement(name), parameters), lambda *row: row)


_LAG_AT: Final = 4 + len(Telemetry._fields) - 1  # lag_windows and lag_records take the place of lag_per_min


def _telemetry(row: tuple[Any, ...]) -> Telemetry:
    windows, records_lag = row[_LAG_AT:]
    minutes = [window * _MINUTE_MS / 60_000 for window in windows]
    return Telemetry._make((*row[4:_LAG_AT], lag_per_min(minutes, records_lag)))
