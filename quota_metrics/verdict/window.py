"""From what a level follows: a client's window at one broker, what the client reported, what changed; and the memory
that windows leave for the next one, which a store of minutes can restore."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

WINDOW_S: Final = 60  # of minutes, and of what is shown now
MINUTE_MS: Final = 60_000
LATE_S: Final = 150.0  # after the end of the newest 60 seconds: newer ones should have been computed long ago


class Window(NamedTuple):
    """One client at one broker in one window, as `quota_metrics.minutes.windows` makes it. Rates are per second."""

    cluster: str
    source: str
    quota_key: str
    user: str
    client_id: str
    broker_id: int
    window_start_ms: int
    elapsed_s: int  # of the window; less than its length while it is not over
    state: str  # 'limited'; 'none': no quota applies; 'unknown': none was observed, or the brokers use another one
    limit: float | None  # what the brokers use; None without one, and when that is not known
    rule_limit: float | None  # what the rule says
    decided_by: str  # class of the brokers that decides instead of the rule
    implied_limit: float | None  # by the throttle times
    matched_entity: str  # the rule, as kafka-configs names its entity
    bucket_user: str  # metric tags: clients with equal ones share the limit
    bucket_client_id: str
    usage: float  # mean rate of this client
    usage_p95: float
    usage_max: float
    bytes: int
    samples: int
    throttle_ms: float  # longest one announced
    muted_ms: float  # how long the broker did not read the client
    group_usage: float  # mean rate of all clients of the bucket
    group_p95: float
    group_last: float  # highest rate of the newest two seconds
    shared_with: int  # other clients of the bucket
    greediest_user: str  # who takes most of the bucket; '' when several do
    greediest_client_id: str
    greediest_usage: float
    members_usage: float  # sum of the mean rates of all clients of the bucket
    usage_rank: int  # 1: this client takes most of the bucket


# Fields that usage_1m.sql sums over samples, in its order. Whatever tells of windows has a column of that name: the
# tables of minutes, levels and jobs, the report, the API, a client's page, `headroom top`.
SUMMED: Final[Mapping[str, str]] = {
    "bytes": "bytes of this client on that broker in the window",
}


class Telemetry(NamedTuple):
    """What a client reported of itself in a window (client_signals); None where it did not."""

    produce_throttle_ms: float | None = None
    fetch_throttle_ms: float | None = None
    request_latency_ms: float | None = None
    queue_time_ms: float | None = None
    rebalances: float | None = None
    records_lag: float | None = None
    records_failed: float | None = None
    records_refused: float | None = None
    records_retried: float | None = None
    outgoing_bytes: float | None = None
    incoming_bytes: float | None = None
    top_sender: str = ""  # the instance with most of the client's outgoing bytes
    top_sender_share: float | None = None
    top_receiver: str = ""
    top_receiver_share: float | None = None
    lag_per_min: float | None = None


class InstanceChange(NamedTuple):
    """How the instances of a client changed since the window before an onset; `text` is '' when none is new."""

    text: str
    kept: float  # share of the instances of before that are still there
    growth: float  # by what share of these there are more
    sent_share: float | None  # what the named instances report of the bytes sent since the onset; None: nothing
    received_share: float | None


class Surroundings(NamedTuple):
    """What is known of a client in a window beside its usage."""

    telemetry: Telemetry = Telemetry()
    software_name: str = ""
    changes: tuple[InstanceChange, ...] = ()  # for onsets one, two, ... windows ago; () when no instance is new
    observed_before: bool = False  # whether the cluster had usage in each of the CAUSE_WINDOWS windows before


class Base(NamedTuple):
    """What causes compare a window with: the client at the same broker in the window before."""

    limit: float | None
    limit_known: bool
    usage: float
    group_usage: float
    bucket_user: str
    bucket_client_id: str
    culprit_user: str
    culprit_client_id: str
    culprit_share: float | None


class PastWindow(NamedTuple):
    """A client on its worst broker in an earlier window."""

    start_ms: int
    value: float  # share of the limit by which levels go; 0 without one
    muted_ms: float
    usage: float
    total_usage: float  # at all brokers


UNSEEN: Final = PastWindow(0, 0.0, 0.0, 0.0, 0.0)  # what counts for a window without usage


class Onset(NamedTuple):
    """The last window in which a client came near its limit."""

    start_ms: int
    cause: str
    own_cause: str  # without the name of another client
    usage_before: float  # in the window before it


class Memory(NamedTuple):
    """Of one client: `past`, oldest first, at most MEMORY_WINDOWS; `bases` by broker, of the newest of these."""

    past: tuple[PastWindow, ...] = ()
    bases: Mapping[int, Base] = MappingProxyType({})
    onset: Onset | None = None
