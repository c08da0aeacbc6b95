"""A client's current quota as columns of quota_usage: limit, rule and bucket. Sans-I/O.

The function of `quotas.callback` stands in for the brokers' `client.quota.callback.class` (KIP-257). It is third-party
code: its exceptions and invalid results are counted, and the client is treated as if it had no quota.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from exporters.model import UsageSample
from quota_metrics.config.entities import CLIENT_ID, USER, Rules, desanitize, entity_text, sanitize
from quota_metrics.config.resolution import CLIENT_KEYS, Resolver, Tags
from quota_metrics.verdict.thresholds import LARGEST_RATE
from quota_metrics.windows import UNLIMITED

_MAX_KEPT = 200_000

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


class QuotaInForce(NamedTuple):
    """`limit` is None without a quota, and while quotas are unknown. Samples with equal buckets share the limit.
    `decided_by`: what may decide instead of the limit: the brokers' callback class, or another vendor's rule; empty:
    nothing."""

    limit: float | None
    limit_known: bool
    matched_entity: str
    bucket_user: str
    bucket_client_id: str
    decided_by: str = ""


QuotaOf: TypeAlias = Callable[[str, str, str, int], QuotaInForce]  # quota key, user, client-id, broker


def unknown_quota(_quota_key: str, user: str, client_id: str, _broker_id: int) -> QuotaInForce:
    """The quota of a client whose cluster's quotas have not been read."""
    return QuotaInForce(None, False, "", user, client_id)


class QuotasInForce:
    """Quotas of one cluster. `callback` stands in for the brokers' callback class (KIP-257); without it, `callback_at`
    returns a broker's class, which decides and is not known."""

    def __init__(
        self, callback: QuotaCallback | None = None, callback_at: Callable[[int], str] = lambda _broker_id: ""
    ) -> None:
        self._answer = (lambda *_client: None) if callback is None else callback.quota
        self._class_at = callback_at if callback is None else lambda _broker_id: ""
        self._rules: Rules | None = None
        self._resolver: Resolver | None = None
        self._kept: dict[tuple[str, str, str], QuotaInForce] = {}

    def configure(self, rules: Rules) -> None:
        """The cluster's whole configuration."""
        if rules != self._rules:
            self._rules, self._resolver = rules, Resolver(rules)
            self._kept.clear()

    def of_client(self, quota_key: str, user: str, client_id: str, broker_id: int) -> QuotaInForce:
        if self._resolver is None or quota_key not in CLIENT_KEYS:
            return unknown_quota(quota_key, user, client_id, broker_id)
        quota = self._answer(quota_key, user, client_id, broker_id)
        if quota is not None:
            return _in_force(quota.limit, "", quota.metric_tags)
        client = (quota_key, user, client_id)
        kept = self._kept.get(client)
        if kept is None:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            resolution = self._resolver.resolve(user, client_id).get(quota_key)
            if resolution is None:
                kept = _in_force(None, "", self._resolver.metric_tags(quota_key, user, client_id))
            else:
                kept = _in_force(resolution.value, entity_text(resolution.entity), resolution.metric_tags)
            kept = self._kept[client] = kept._replace(decided_by=_foreign(self._resolver, quota_key, user, client_id))
        decided_by = self._class_at(broker_id)
        return kept._replace(decided_by=decided_by) if decided_by else kept

    def of_sensor(self, row: UsageSample) -> UsageSample:
        """Adds the quota to a row that a broker reported for its own sensor, whose names are the metric tags."""
        if self._resolver is None or row.quota_key not in CLIENT_KEYS:
            return row
        tags = {USER: sanitize(row.user), CLIENT_ID: row.client_id}
        quota = self._answer(row.quota_key, row.user, row.client_id, row.broker_id)
        if quota is not None:
            names = desanitize(quota.metric_tags.get(USER, "")), quota.metric_tags.get(CLIENT_ID, "")
            # With other tags the sensor is of other clients, whose limit is not known.
            in_force = _in_force(quota.limit if names == (row.user, row.client_id) else None, "", tags)
        else:
            rule = self._resolver.limit_of_tags(row.quota_key, tags)
            foreign = _foreign(self._resolver, row.quota_key, row.user, row.client_id or None)
            in_force = _in_force(rule and rule.value, entity_text(rule.entity) if rule else "", tags)
            in_force = in_force._replace(decided_by=self._class_at(row.broker_id) or foreign)
        return row._replace(**in_force._asdict())


def _foreign(resolver: Resolver, quota_key: str, user: str, client_id: str | None) -> str:
    """Another vendor's rule that may apply, for `decided_by`; empty: none. `client_id`: None for any."""
    rules = resolver.not_understood(quota_key, user, client_id)
    return f"{entity_text(rules[0].entity)} (not understood)" if rules else ""


def _in_force(limit: float | None, entity: str, tags: Tags) -> QuotaInForce:
    limited = limit is not None and limit <= LARGEST_RATE  # false for NaN, with which Kafka never throttles
    # A callback class may meter by tags of its own. Different tags are different buckets.
    names = [desanitize(tags[tag]) if tag == USER else f"{tag}={tags[tag]}" for tag in sorted(tags) if tag != CLIENT_ID]
    return QuotaInForce(limit if limited else None, True, entity, ";".join(names), tags.get(CLIENT_ID, ""))
