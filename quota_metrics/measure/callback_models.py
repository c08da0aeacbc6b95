"""Two ready-made callbacks: groups of clients with one quota, and limits by the share of led partitions. Sans-I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from quota_metrics.config.entities import CLIENT_ID, USER, Entity, entity_of
from quota_metrics.config.resolution import Tags
from quota_metrics.measure.callbacks import CallbackError, ClientQuotaType, ClusterMetadata, DefaultQuotaCallback

T = TypeVar("T")

GROUP = "group"
_SHARED_TYPES = (ClientQuotaType.PRODUCE, ClientQuotaType.FETCH)


class QuotaGroups(DefaultQuotaCallback):
    """Several users and client-ids share one quota, by the tag `group`; others follow Kafka's default rules.

    Settings: `groups`, {group: [entity, ...]} with entities of exact names, {"user": "alice"} or {"user": "alice",
    "client-id": "app"} or {"client-id": "app"}; and `separator`: a user that contains it belongs to the group
    named before it. A group's limit is the quota of the user GROUP + separator, set with Kafka's own tools; failing
    that the one of the user that is the separator alone; failing that `limits`, {"PRODUCE": number, ...}.
    """

    def __init__(self) -> None:
        super().__init__()
        self._separator = ""
        self._groups: dict[Entity, str] = {}
        self._limits: dict[str, float] = {}
        self._set: dict[tuple[ClientQuotaType, str], float] = {}
        self._reset = dict.fromkeys(ClientQuotaType, False)

    def configure(self, configs: Mapping[str, object]) -> None:
        separator, groups, limits = (configs.get(name) for name in ("separator", "groups", "limits"))
        self._separator = _a(str, "separator", separator or "")
        self._groups = _members(_a(dict, "groups", groups or {}))
        self._limits = {
            ClientQuotaType(quota_type).value: float(limit)
            for quota_type, limit in _a(dict, "limits", limits or {}).items()
        }
        self._reset = dict.fromkeys(ClientQuotaType, True)

    def quota_metric_tags(self, quota_type: ClientQuotaType, user: str, client_id: str) -> Tags:
        group = self._group(user, client_id)
        return super().quota_metric_tags(quota_type, user, client_id) if group is None else {GROUP: group}

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        group = metric_tags.get(GROUP)
        if group is None:
            return super().quota_limit(quota_type, metric_tags)
        for name in (group + self._separator, self._separator):
            if (quota_type, name) in self._set:
                return self._set[quota_type, name]
        return self._limits.get(quota_type)

    def update_quota(self, quota_type: ClientQuotaType, entity: Entity, value: float) -> None:
        super().update_quota(quota_type, entity, value)
        name = _user_alone(entity)
        if name is not None:
            self._set[quota_type, name] = value

    def remove_quota(self, quota_type: ClientQuotaType, entity: Entity) -> None:
        super().remove_quota(quota_type, entity)
        name = _user_alone(entity)
        if name is not None:
            self._set.pop((quota_type, name), None)

    def quota_reset_required(self, quota_type: ClientQuotaType) -> bool:
        required, self._reset[quota_type] = self._reset[quota_type], False
        return required

    def _group(self, user: str, client_id: str) -> str | None:
        both = entity_of({USER: user, CLIENT_ID: client_id})
        for entity in (both, both[:1], both[1:]):
            if entity in self._groups:
                return self._groups[entity]
        head, found, _ = user.partition(self._separator) if self._separator else ("", "", "")
        return head if found else None


class PartitionShare(QuotaGroups):
    """Limits are for the whole cluster; each broker grants a share of them, by the partitions that it leads.

    Settings: those of QuotaGroups; `node.id`; and `topics`, {group or user or client-id: [topic prefix, ...]}, the
    topics that count for that name; for other names all topics count. A broker that leads none of them grants the share
    of one. Only bandwidth quotas are divided, as in Kafka's own example of a callback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._node_id = -1
        self._topics: dict[str, tuple[str, ...]] = {}
        self._leaders: list[tuple[str, int]] = []  # topic and leader of each partition
        self._shares: dict[str, float] = {}

    def configure(self, configs: Mapping[str, object]) -> None:
        super().configure(configs)
        self._node_id = int(str(configs.get("node.id", -1)))
        topics = _a(dict, "topics", configs.get("topics") or {})
        self._topics = {name: tuple(_a(list, f"topics of {name}", prefixes)) for name, prefixes in topics.items()}
        self._shares.clear()

    def quota_limit(self, quota_type: ClientQuotaType, metric_tags: Tags) -> float | None:
        limit = super().quota_limit(quota_type, metric_tags)
        if limit is None or quota_type not in _SHARED_TYPES:
            return limit
        return limit * self._share(metric_tags.get(GROUP) or metric_tags.get(USER) or metric_tags.get(CLIENT_ID, ""))

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        leaders = [(partition.topic, partition.leader_id) for partition in cluster.partitions]
        changed = leaders != self._leaders
        self._leaders = leaders
        self._shares.clear()
        return changed

    def _share(self, name: str) -> float:
        if name not in self._topics:
            name = ""  # all topics: one share for all other names
        if name not in self._shares:
            self._shares[name] = self._counted(self._topics.get(name, ("",)))
        return self._shares[name]

    def _counted(self, prefixes: tuple[str, ...]) -> float:
        counting = [leader for topic, leader in self._leaders if topic.startswith(prefixes)]
        return max(counting.count(self._node_id), 1) / len(counting) if counting else 1.0


def _members(groups: Mapping[str, object]) -> dict[Entity, str]:
    members: dict[Entity, str] = {}
    for group, entities in groups.items():
        for names in _a(list, f"group {group}", entities):
            entity = entity_of(_a(dict, f"a member of {group}", names))
            if not entity or any(kind not in (USER, CLIENT_ID) or not isinstance(name, str) for kind, name in entity):
                raise CallbackError(f"a member of {group} is not an entity of user and client-id with exact names")
            if members.setdefault(entity, group) != group:
                raise CallbackError(f"a member of {group} is one of {members[entity]}, too")
    return members


def _user_alone(entity: Entity) -> str | None:
    return entity[0][1] if len(entity) == 1 and entity[0][0] == USER else None


def _a(kind: type[T], what: str, value: Any) -> T:
    if not isinstance(value, kind):
        raise CallbackError(f"{what} is not a {kind.__name__}")
    return value
