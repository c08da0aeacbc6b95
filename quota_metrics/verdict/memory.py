"""What the windows of a client leave for the next one. A store of minutes can restore it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


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
