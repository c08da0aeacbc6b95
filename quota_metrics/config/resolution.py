"""Resolves a client's quota: the rule that applies, the rules it overrides, and the broker's metric tags. Sans-I/O.

A port of ClientQuotaManager's default callback, one manager per quota key: the most specific configured entity
determines the metric tags, and the limit is then looked up by the tags. For empty names the two differ, and the limit
applies, as in the broker.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from exporters.model import QuotaKey
from quota_metrics.config.entities import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    Rules,
    desanitize,
    is_kafkas,
    literal_address,
    sanitize,
)

Tags: TypeAlias = Mapping[str, str]

CLIENT_KEYS = tuple(key.value for key in QuotaKey if key is not QuotaKey.CONNECTION_CREATION_RATE)
IP_KEYS = (QuotaKey.CONNECTION_CREATION_RATE.value,)

# ClientQuotaManager's bits: at which levels quotas of a key are configured (quotaTypesEnabled).
NO_QUOTAS, CLIENT_ID_QUOTA, USER_QUOTA, USER_CLIENT_ID_QUOTA = 0, 1, 2, 4


class Named(StrEnum):
    """The kind of one dimension (user, client-id) of a quota entity."""

    EXACT = "exact"
    DEFAULT = "default"
    ABSENT = "absent"


# ClientQuotaManager's eight levels, most specific first: (user, client-id) of the configured entity.
PRECEDENCE: tuple[tuple[Named, Named], ...] = (
    (Named.EXACT, Named.EXACT),
    (Named.EXACT, Named.DEFAULT),
    (Named.EXACT, Named.ABSENT),
    (Named.DEFAULT, Named.EXACT),
    (Named.DEFAULT, Named.DEFAULT),
    (Named.DEFAULT, Named.ABSENT),
    (Named.ABSENT, Named.EXACT),
    (Named.ABSENT, Named.DEFAULT),
)

# The dimensions (user, client-id) in the tags of a level.
_Form: TypeAlias = tuple[bool, bool]
_FORMS: tuple[_Form, ...] = tuple((user is not Named.ABSENT, client is not Named.ABSENT) for user, client in PRECEDENCE)
_BITS: dict[_Form, int] = {
    (False, True): CLIENT_ID_QUOTA,
    (True, False): USER_QUOTA,
    (True, True): USER_CLIENT_ID_QUOTA,
}
_UNMATCHED: _Form = (False, True)
_SHORTCUTS: dict[int, _Form] = {NO_QUOTAS: _UNMATCHED} | {bit: form for form, bit in _BITS.items()}


class Rule(NamedTuple):
    entity: Entity
    value: float


_RulesByKey: TypeAlias = Mapping[str, Rule]


class Resolution(NamedTuple):
    """A client's quota for one key. Clients with equal tags share it."""

    value: float
    entity: Entity
    metric_tags: Tags
    overridden: list[Rule]  # the rules that this one overrides, most specific first


class Resolver:
    """Resolves against one configuration, with at most eight look-ups per resolution."""

    def __init__(self, rules: Rules) -> None:
        self._clients: dict[Entity, _RulesByKey] = {}
        self._ips: dict[str | None, Rule] = {}
        self._not_understood: dict[str, list[Rule]] = {}  # by key; of entities with types that Apache Kafka has not
        self._levels: dict[str, int] = dict.fromkeys(CLIENT_KEYS, NO_QUOTAS)
        for entity, values in rules.items():
            names = dict(entity)
            own = {key: Rule(entity, value) for key, value in values.items()}
            if not is_kafkas(entity):
                for key, rule in own.items():
                    self._not_understood.setdefault(key, []).append(rule)
            elif IP in names:
                if IP_KEYS[0] in own:
                    self._ips[_normal(names[IP])] = own[IP_KEYS[0]]
            else:
                self._clients[entity] = own
                for key in own.keys() & self._levels.keys():
                    self._levels[key] |= _BITS[USER in names, CLIENT_ID in names]

    def resolve(self, user: str | None, client_id: str | None, ip: str | None = None) -> dict[str, Resolution]:
        """The client's quota per key, without keys to which no rule applies.

        None is an unknown name: no rule on that dimension applies. An empty name is a name that is known to be empty.
        """
        matched = self._matched(user, client_id)
        tags = _tags_by_form(user or "", client_id or "")
        resolved = {}
        for key in CLIENT_KEYS:
            resolution = self._client_quota(key, matched, tags)
            if resolution is not None:
                resolved[key] = resolution
        if ip is not None:  # ConnectionQuotas: the address's own limit, else the default
            rules = [rule for rule in map(self._ips.get, (_normal(ip), None)) if rule is not None]
            if rules:
                resolved[IP_KEYS[0]] = Resolution(rules[0].value, rules[0].entity, {IP: ip}, rules[1:])
        return resolved

    def quota(self, key: str, user: str, client_id: str) -> Resolution | None:
        """The client's quota for one key of CLIENT_KEYS; None if no rule applies."""
        return self._client_quota(key, self._matched(user, client_id), _tags_by_form(user, client_id))

    def not_understood(self, key: str, user: str | None, client_id: str | None) -> list[Rule]:
        """The rules of other vendors' entity types that may apply to the client: what they say of the user and the
        client-id fits, Redpanda's prefixes included. Whether they win, only the vendor knows."""
        names = {USER: user, CLIENT_ID: client_id}

        def fits(kind: str, name: str | None) -> bool:
            if kind == "client-id-prefix" and name is not None and client_id is not None:
                return client_id.startswith(name)
            return name is None or name == names.get(kind, name)

        return [rule for rule in self._not_understood.get(key, ()) if all(fits(*part) for part in rule.entity)]

    def metric_tags(self, key: str, user: str | None, client_id: str | None) -> Tags:
        """The tags under which a broker meters the client, even without a quota (quotaMetricTags)."""
        levels = (level for level, rules in self._matched(user, client_id) if key in rules)
        return _tags_by_form(user or "", client_id or "")[self._form(key, next(levels, None))]

    def limit_of_tags(self, key: str, tags: Tags) -> Rule | None:
        """The rule behind a metric of the broker (quotaLimit); None when the tags are unlimited or not in use."""
        user, client_id = desanitize(tags.get(USER, "")), tags.get(CLIENT_ID, "")
        form = (user != "", client_id != "")
        for level, rules in self._matched(user, client_id):
            if _FORMS[level] == form and key in rules:
                return rules[key]
        return None

    def _matched(self, user: str | None, client_id: str | None) -> list[tuple[int, _RulesByKey]]:
        """The matching rules, most specific first, each with its index in PRECEDENCE."""
        users, client_ids = _spelled(USER, user), _spelled(CLIENT_ID, client_id)
        matched = []
        for level, (user_match, client_match) in enumerate(PRECEDENCE):
            if user_match in users and client_match in client_ids:
                rules = self._clients.get(users[user_match] + client_ids[client_match])
                if rules is not None:
                    matched.append((level, rules))
        return matched

    def _client_quota(
        self, key: str, matched: list[tuple[int, _RulesByKey]], tags: dict[_Form, Tags]
    ) -> Resolution | None:
        candidates = [(level, rules[key]) for level, rules in matched if key in rules]
        if not candidates:
            return None
        metric_tags = tags[self._form(key, candidates[0][0])]
        form = (metric_tags[USER] != "", metric_tags[CLIENT_ID] != "")
        for place, (level, rule) in enumerate(candidates):
            if _FORMS[level] == form:
                overridden = [lesser for _, lesser in candidates[place + 1 :]]
                return Resolution(rule.value, rule.entity, metric_tags, overridden)
        return None

    def _form(self, key: str, level: int | None) -> _Form:
        """The dimensions of the tags. If only one level is configured, the broker does not look up a rule."""
        shortcut = _SHORTCUTS.get(self._levels[key])
        if shortcut is not None:
            return shortcut
        return _UNMATCHED if level is None else _FORMS[level]


def bucket_names(resolution: Resolution) -> tuple[str, str]:
    """The metric tags (user, client-id) of the bucket, the user as in connections."""
    return desanitize(resolution.metric_tags[USER]), resolution.metric_tags[CLIENT_ID]


def _tags_by_form(user: str, client_id: str) -> dict[_Form, Tags]:
    sanitized = sanitize(user)
    return {
        (True, True): {USER: sanitized, CLIENT_ID: client_id},
        (True, False): {USER: sanitized, CLIENT_ID: ""},
        (False, True): {USER: "", CLIENT_ID: client_id},
    }


def _spelled(kind: str, name: str | None) -> dict[Named, Entity]:
    """The entity's value of the dimension that matches the name; an unknown name matches only 'absent'."""
    if name is None:
        return {Named.ABSENT: ()}
    return {Named.EXACT: ((kind, name),), Named.DEFAULT: ((kind, None),), Named.ABSENT: ()}


def _normal(name: str | None) -> str | None:
    """One spelling of an address. Host names are returned unchanged and not resolved."""
    return name and (literal_address(name) or name)
