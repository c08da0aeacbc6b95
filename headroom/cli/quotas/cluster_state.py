"""Quotas and subscriptions of a cluster: read, checked against what a file can hold, applied."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quota_metrics.config.entities import Altered, Rules, text
from quota_metrics.config.quota_file import writable
from quota_metrics.config.quota_plan import (
    DeclaredSubscriptions,
    QuotaPlan,
    Subscriptions,
    cluster_fingerprint,
    requests,
)
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import alter_subscription, read_subscriptions
from quota_metrics.kafka.errors import ClusterError
from telemetry.subscriptions.subscription import DEFAULTS, MATCH_KEYS
from telemetry.subscriptions.subscription_file import SubscriptionFileError, parsed

_TRIES, _PAUSE_S = 150, 0.2  # until a broker has followed its controller


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Quotas and subscriptions; None: not asked for, or `unread` says why they are left out."""

    rules: Rules
    subscriptions: Subscriptions | None = None
    unread: str = ""
    is_complete: bool = True  # whether nothing of a file was invalid and left out

    @property
    def base(self) -> str:
        return cluster_fingerprint(self.rules, self.subscriptions)


async def read_state(admin: KafkaAdmin, *, subscriptions: bool) -> ClusterState:
    """Raises ClusterError."""
    read = await read_subscriptions(admin) if subscriptions else None
    return ClusterState(await admin.describe_client_quotas(), read)


async def read_what_is_there(admin: KafkaAdmin) -> ClusterState:
    """Quotas, and subscriptions if the cluster has them and this user may read them."""
    rules = await admin.describe_client_quotas()
    try:
        return ClusterState(rules, await read_subscriptions(admin))
    except ClusterError as exc:
        return ClusterState(rules, unread=f"subscriptions are left out: {exc}")


def writable_state(state: ClusterState) -> tuple[ClusterState, list[str]]:
    """What a file can hold, and one line for each part of the cluster that it cannot, which is left as it is."""
    rules, left_out = writable(state.rules)
    if state.subscriptions is None:
        return replace(state, rules=rules), left_out
    valid, errors = valid_subscriptions({name: dict(keys) for name, keys in state.subscriptions.items()})
    subscriptions = {name: dict(keys) for name, keys in state.subscriptions.items() if name in valid}
    return replace(state, rules=rules, subscriptions=subscriptions), left_out + errors


def valid_subscriptions(content: Any) -> tuple[DeclaredSubscriptions, list[str]]:
    """Those of a section that are valid, and one line for each error of the others."""
    if not isinstance(content, dict):
        return {}, ["subscriptions: not a mapping of subscriptions"]
    valid: dict[str, Mapping[str, str | None]] = {}
    errors: list[str] = []
    for name, keys in content.items():
        absent: dict[str, None] = {}  # a key without a value must not exist
        present = keys
        if isinstance(keys, dict):
            absent = dict.fromkeys(key for key, value in keys.items() if value is None and key in DEFAULTS)
            present = {key: value for key, value in keys.items() if key not in absent}
        try:
            resources = parsed({name: present}, MATCH_KEYS)
        except SubscriptionFileError as exc:
            errors += [f"subscriptions: {fault}" for fault in exc.faults]
        else:
            valid[name] = {key: value or None for key, value in resources.get(name, {}).items()} | absent
    return valid, errors


async def apply_plan(admin: KafkaAdmin, plan: QuotaPlan) -> int:
    """Checks all changes before it makes the first; returns the number of requests. Raises ClusterError,
    ConnectionError."""
    if (await read_state(admin, subscriptions=plan.has_subscriptions)).base != plan.base:
        raise ConnectionError("the cluster's quotas changed after they were read: nothing was applied, plan again")
    batches = list(requests(plan.alterations))
    for batch in batches:
        _check(await admin.alter_client_quotas(batch, validate_only=True), "nothing was applied")
    subscriptions: Mapping[str, Mapping[str, str | None]] = plan.altered_subscriptions
    for name, keys in subscriptions.items():
        await alter_subscription(admin, name, keys, validate_only=True)
    for number, batch in enumerate(batches):
        _check(
            await admin.alter_client_quotas(batch), f"{number} of {len(batches)} requests were applied, see the undo"
        )
    for name, keys in subscriptions.items():
        await alter_subscription(admin, name, keys)
    await _until_in_force(admin, plan)
    return len(batches) + len(subscriptions)


async def _until_in_force(admin: KafkaAdmin, plan: QuotaPlan) -> None:
    """A broker follows its controller with a delay. Raises ConnectionError."""
    missing: list[str] = []
    for _ in range(_TRIES):
        state = await read_state(admin, subscriptions=plan.has_subscriptions)
        missing = [
            f"{key} of {text(alteration.entity)}"
            for alteration in plan.alterations
            for key, value in alteration.values.items()
            if state.rules.get(alteration.entity, {}).get(key) != value
        ] + [
            f"{change.key} of the subscription {change.holder}"
            for change in plan.subscription_changes
            if (state.subscriptions or {}).get(change.holder, {}).get(change.key) != change.after
        ]
        if not missing:
            return
        await asyncio.sleep(_PAUSE_S)
    raise ConnectionError(f"after the change other values are in force: {', '.join(missing[:20])}")


def _check(results: Sequence[Altered], consequence: str) -> None:
    refused = [
        f"{text(result.entity)}: {result.error_message or result.error_code}" for result in results if result.error_code
    ]
    if refused:
        raise ConnectionError(f"{consequence}; refused: {'; '.join(refused)}")
