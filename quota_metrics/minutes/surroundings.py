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
from quota_metrics.verdict.window import MINUTE_MS, InstanceChange, Surroundings, Telemetry

ClusterClient: TypeAlias = tuple[str, str, str]  # cluster, user, client-id

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


class ClientReports:
    """What clients reported in 60 seconds that begin in the minute `minute_ms`."""

    def __init__(
        self,
        telemetry: Mapping[ClusterClient, Telemetry],
        clients: Mapping[ClusterClient, ClientFacts],
        instances: Mapping[ClusterClient, Sequence[SeenInstance]],
        byte_reports: Mapping[ClusterClient, Sequence[ByteReport]],
        minute_ms: int,
    ) -> None:
        self._telemetry = telemetry
        self._clients = clients
        self._instances = instances
        self._byte_reports = byte_reports
        self._minute_ms = minute_ms

    def facts(self, client: ClusterClient) -> ClientFacts:
        """What its instances said of themselves."""
        return self._clients.get(client, _NOBODY)

    def surroundings(self, client: ClusterClient, *, observed: bool, explains_onset: bool) -> Surroundings:
        """`explains_onset`: whether changes of its instances are looked for."""
        changes: tuple[InstanceChange, ...] = ()
        if explains_onset and client in self._instances:
            byte_reports = self._byte_reports.get(client, ())
            changes = changes_before(self._instances[client], byte_reports, self._minute_ms, MINUTE_MS)
        telemetry = self._telemetry.get(client, _SILENT)
        return Surroundings(telemetry, self.facts(client).software_name, changes, observed)


_NOBODY: Final = ClientFacts()
_SILENT: Final = Telemetry()


def read_reports(store: ClickHouse, start_ms: int, *, telemetry: bool) -> ClientReports:
    """Of the 60 seconds from `start_ms` on; without `telemetry` nothing of it is read. Raises StoreError."""
    since_ms = start_ms - (CAUSE_WINDOWS + 1) * MINUTE_MS
    span = {
        **TELEMETRY_PARAMETERS,
        "from_ms": start_ms,
        "to_ms": start_ms + MINUTE_MS,
        "offset_ms": start_ms % MINUTE_MS,
        "window_ms": MINUTE_MS,
        "since_ms": since_ms,
        "seen_from_ms": since_ms - LONGEST_SILENCE_MS,
        "cluster": "",
        "telemetry": int(telemetry),
    }
    reported = {row[:3]: _telemetry(row) for row in _rows(store, "telemetry", span)} if telemetry else {}
    clients = {row[:3]: ClientFacts(*row[3:]) for row in _rows(store, "clients", {})}
    instances: dict[ClusterClient, list[SeenInstance]] = defaultdict(list)
    byte_reports: dict[ClusterClient, list[ByteReport]] = defaultdict(list)
    for row in _rows(store, "instances", span):
        instances[row[:3]].append(seen_instance(*row[3:]))
    if instances:
        for row in _rows(store, "byte_reports", span):
            byte_reports[row[:3]].append(ByteReport(*row[3:]))
    return ClientReports(reported, clients, instances, byte_reports, start_ms - start_ms % MINUTE_MS)


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
    return records(store.table(statement(name), parameters))


_LAG_AT: Final = 4 + len(Telemetry._fields) - 1  # lag_windows and lag_records take the place of lag_per_min


def _telemetry(row: tuple[Any, ...]) -> Telemetry:
    minutes, records_lag = row[_LAG_AT:]
    return Telemetry._make((*row[4:_LAG_AT], lag_per_min([float(minute) for minute in minutes], records_lag)))
