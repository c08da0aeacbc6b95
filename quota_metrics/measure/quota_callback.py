"""The function of `quotas.callback`, which stands in for the brokers' `client.quota.callback.class` (KIP-257).

It is third-party code: its exceptions and invalid results are counted, and the client is treated as if it had no quota;
nothing else is affected. Sans-I/O.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from quota_metrics.config.resolution import Tags
from quota_metrics.windows import UNLIMITED

# (quota key, user, client id, broker) -> (tags, limit). Clients with equal tags share the limit. A limit of None is no
# limit; None instead of the pair lets Kafka's own rules apply. The function is called for each row of usage
# and for each throttled response.
Function: TypeAlias = Callable[[str, str, str, int], tuple[Tags, float | None] | None]


class CallbackError(Exception):
    """There is no such function; the message is one line."""


class Quota(NamedTuple):
    """The quota of a client, shared by all clients with equal tags. UNLIMITED is Kafka's Long.MAX_VALUE."""

    metric_tags: Tags
    limit: float


class QuotaCallback:
    """Calls the function, and counts its faults."""

    def __init__(self, function: Function) -> None:
        self.faults = 0
        self.last_fault = ""
        self._function = function

    @classmethod
    def load(cls, path: str) -> QuotaCallback:
        """Of "package.module:function". Raises CallbackError for anything that the module raises."""
        module_name, _, name = path.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), name)
        except Exception as exc:  # a foreign module may raise anything
            raise CallbackError(f"the quota callback {path} cannot be used: {type(exc).__name__}: {exc}") from exc
        if not callable(function) or isinstance(function, type):
            raise CallbackError(f"the quota callback {path} cannot be used: it is not a function")
        return cls(function)

    def quota(self, quota_key: str, user: str, client_id: str, broker_id: int) -> Quota | None:
        """None: Kafka's own rules apply. Raises nothing."""
        try:
            answer = self._function(quota_key, user, client_id, broker_id)
            if answer is None:
                return None
            tags, limit = answer
            if not isinstance(tags, Mapping) or not all(isinstance(part, str) for tag in tags.items() for part in tag):
                return self._fault(f"answered tags that are not strings by strings: {type(tags).__name__}")
            if limit is None:
                return Quota(tags, UNLIMITED)
            if not isinstance(limit, int | float) or isinstance(limit, bool) or math.isnan(limit):
                return self._fault(f"answered a limit that is not a number: {type(limit).__name__}", tags)
            return Quota(tags, float(limit))
        except Exception as exc:  # noqa: BLE001  # third-party code and its values may raise anything
            return self._fault(f"raised {type(exc).__name__}: {exc}")

    def _fault(self, what: str, tags: Tags | None = None) -> Quota:
        self.faults += 1
        self.last_fault = f"the quota callback {what}"
        return Quota(tags or {}, UNLIMITED)
