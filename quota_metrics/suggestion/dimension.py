"""By which names a fleet's quotas are: users, client ids, or both; and which clients they are for. Sans-I/O."""

import re
from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from typing import Final, NamedTuple

from exporters.identity import is_shortened
from exporters.model import DEFAULT_ENTITY
from quota_metrics.config.entities import CLIENT_ID, USER, Entity, Rules, entity_of
from quota_metrics.config.resolution import PRECEDENCE, Named, Resolver

# In a client id that looks made for one run: Streams, ksqlDB, NiFi and Spark put in a UUID, Flink's source a number.
OF_ONE_RUN: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|^KafkaSource--?[0-9]{9}")


class Dimension(StrEnum):
    """Values of --by without `auto`."""

    USER = "user"
    CLIENT_ID = "client-id"
    BOTH = "both"

    @property
    def kinds(self) -> tuple[str, ...]:
        return {Dimension.USER: (USER,), Dimension.CLIENT_ID: (CLIENT_ID,)}.get(self, (USER, CLIENT_ID))

    @property
    def default(self) -> Entity:
        """The entity that stands for every name."""
        return entity_of(dict.fromkeys(self.kinds))

    def bucket(self, user: str, client_id: str) -> tuple[str, str]:
        """The client's names as metric tags: "" is no part."""
        return (user if USER in self.kinds else "", client_id if CLIENT_ID in self.kinds else "")


class Fleet(NamedTuple):
    """How the clients of a cluster are named: authenticated users, pairs (user, client-id), and how many pairs the user
    with most of them has. A user's client ids that look made for one run count as one."""

    users: int
    clients: int
    most_of_user: int


def dimension_of(rules: Rules, keys: Collection[str], fleet: Fleet) -> tuple[Dimension, str]:
    """The dimension and why: of the most specific default in force, else of most rules, else by the names.

    `rules`: in force; those with none of `keys` do not count."""
    used = [entity for entity, values in rules.items() if values.keys() & set(keys)]
    for dimension in (Dimension.BOTH, Dimension.USER, Dimension.CLIENT_ID):
        if dimension.default in used:
            return dimension, "a default of this kind is in force"
    by_kinds = {dimension.kinds: dimension for dimension in Dimension}
    kinds_used = [tuple(kind for kind, _ in entity) for entity in used]
    # Entities of addresses and of other vendors' types are of no dimension.
    forms = Counter(by_kinds[kinds] for kinds in kinds_used if kinds in by_kinds)
    if forms:
        dimension, count = forms.most_common(1)[0]
        return dimension, f"{count} of {forms.total()} rules in force are of this kind"
    if fleet.users <= 1:
        return Dimension.CLIENT_ID, f"{fleet.users or 'no'} user is authenticated"
    if 2 * fleet.most_of_user > fleet.clients:
        return Dimension.BOTH, f"one user has {fleet.most_of_user} of {fleet.clients} clients"
    return Dimension.USER, f"{fleet.users} users are authenticated and none has more than half of the clients"


class Placed(NamedTuple):
    """The rule that a client has now, and the tags of the bucket that a new quota would give it; None: it keeps its
    rule, or no quota can name it."""

    rule: Entity | None
    bucket: tuple[str, str] | None


def placed(resolver: Resolver, dimension: Dimension, key: str, user: str, client_id: str) -> Placed:
    """Where the client belongs. A rule that takes precedence over the new default is kept; a default matches an empty
    name without limiting it (DefaultQuotaCallback)."""
    resolution = resolver.quota(key, user, client_id)
    rule = None if resolution is None else resolution.entity
    names = {USER: user, CLIENT_ID: client_id}
    if keeps(rule, dimension) or not all(names[kind] for kind in dimension.kinds):
        return Placed(rule, None)
    return Placed(rule, dimension.bucket(user, client_id))


def keeps(rule: Entity | None, dimension: Dimension) -> bool:
    """Whether the rule takes precedence over a default of the dimension."""
    return rule is not None and level(rule) < level(dimension.default)


def level(entity: Entity) -> int:
    """The index in PRECEDENCE of an entity of users and client ids."""
    names = dict(entity)
    return PRECEDENCE.index((_named(names, USER), _named(names, CLIENT_ID)))


def is_nameable(name: str) -> bool:
    """Whether a quota can have a stored name: not one that stands for another."""
    return name not in ("", DEFAULT_ENTITY) and "\N{REPLACEMENT CHARACTER}" not in name and not is_shortened(name)


def _named(names: dict[str, str | None], kind: str) -> Named:
    if kind not in names:
        return Named.ABSENT
    return Named.DEFAULT if names[kind] is None else Named.EXACT
