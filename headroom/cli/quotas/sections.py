"""The sections `subscriptions` and `scram_users` of a file: checked, read from a cluster, planned, applied, written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headroom.errors import ArgumentError
from quota_metrics.config.entities import Rules
from quota_metrics.config.file_plan import (
    DeclaredResources,
    FileSection,
    ResourceDifference,
    Resources,
    altered,
    credentials,
    file_fingerprint,
    resource_differences,
    undone,
)
from quota_metrics.config.quota_file import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    DeclaredFile,
    DeclaredQuotaError,
    DeclaredScramUser,
    writable,
)
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import alter_subscription, read_subscriptions
from quota_metrics.kafka.errors import ClusterError
from quota_metrics.kafka.scram_users import ScramCredential, alter_scram_users, read_scram_users
from telemetry.subscriptions.subscription import DEFAULTS, MATCH_KEYS
from telemetry.subscriptions.subscription_file import SubscriptionFileError, parsed

_READERS = {FileSection.SUBSCRIPTIONS: read_subscriptions, FileSection.SCRAM_USERS: read_scram_users}


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Quotas, and the sections that were asked for. `unread`: why a section is left out."""

    rules: Rules
    resources: Mapping[FileSection, Resources] = field(default_factory=dict)
    unread: Sequence[str] = ()

    @property
    def base(self) -> str:
        return file_fingerprint(self.rules, self.resources)


def declared_resources(file: DeclaredFile) -> dict[FileSection, DeclaredResources]:
    """Of the sections that the file has. Raises DeclaredQuotaError."""
    sections: dict[FileSection, DeclaredResources] = {}
    if file.subscriptions is not None:
        sections[FileSection.SUBSCRIPTIONS] = _subscriptions(file.subscriptions)
    if file.scram_users is not None:
        users: dict[str, dict[str, str | None]] = {}
        for one in file.scram_users:
            iterations = None if one.iterations is None else str(one.iterations)
            users.setdefault(one.user, {})[one.mechanism] = iterations
        sections[FileSection.SCRAM_USERS] = users
    return sections


async def read_state(admin: KafkaAdmin, sections: Sequence[FileSection]) -> ClusterState:
    """Raises ClusterError."""
    resources = {section: await _READERS[section](admin) for section in sections}
    return ClusterState(await admin.describe_client_quotas(), resources)


async def read_what_is_there(admin: KafkaAdmin) -> ClusterState:
    """All sections that the cluster has and that this user may read."""
    resources, unread = {}, []
    rules = await admin.describe_client_quotas()
    for section, read in _READERS.items():
        try:
            resources[section] = await read(admin)
        except ClusterError as exc:
            unread.append(f"{section} are left out: {exc}")
    return ClusterState(rules, resources, unread)


def writable_state(state: ClusterState) -> tuple[ClusterState, list[str]]:
    """What a file can hold, and one line for each part of the cluster that it cannot, which is left as it is."""
    rules, others = writable(state.rules)
    subscriptions, users = (dict[str, dict[str, str]]() for _ in range(2))
    for name, keys in state.resources.get(FileSection.SUBSCRIPTIONS, {}).items():
        try:
            _subscriptions({name: dict(keys)})
            subscriptions[name] = dict(keys)
        except DeclaredQuotaError as exc:
            others += exc.errors
    for user, mechanism, iterations in credentials(state.resources.get(FileSection.SCRAM_USERS, {})):
        if mechanism in SCRAM_MECHANISMS and MIN_ITERATIONS <= int(iterations or 0) <= MAX_ITERATIONS:
            users.setdefault(user, {})[mechanism] = str(iterations)
        else:
            others.append(f"scram_users: {mechanism} of {user} with {iterations} iterations: Kafka sets no such one")
    held = {FileSection.SUBSCRIPTIONS: subscriptions, FileSection.SCRAM_USERS: users}
    return ClusterState(rules, {section: held[section] for section in state.resources}, state.unread), others


def differences(
    state: ClusterState, declared: Mapping[FileSection, DeclaredResources], *, prune: bool
) -> tuple[list[ResourceDifference], list[ResourceDifference]]:
    """(changes, unmanaged) of the sections that the file has."""
    changes, unmanaged = [], []
    for section, resources in declared.items():
        of_file, beyond = resource_differences(section, state.resources[section], resources)
        changes += of_file + (beyond if prune else [])
        unmanaged += [] if prune else beyond
    return changes, unmanaged


def credentials_to_set(
    users: Sequence[DeclaredScramUser], changes: Sequence[ResourceDifference], *, set_passwords: bool
) -> list[ScramCredential]:
    """Those that are new or have other iterations, or all. Raises ArgumentError when a password is not given."""
    changed = {(each.name, each.key) for each in changes if each.section is FileSection.SCRAM_USERS}
    return [
        ScramCredential(one.user, one.mechanism, one.iterations, _password(one))
        for one in users
        if one.iterations is not None and (set_passwords or (one.user, one.mechanism) in changed)
    ]


async def check_resources(admin: KafkaAdmin, changes: Sequence[ResourceDifference]) -> None:
    """Has the cluster check the subscriptions; of SCRAM users it checks nothing beforehand. Raises ClusterError."""
    for name, keys in altered(changes, FileSection.SUBSCRIPTIONS).items():
        await alter_subscription(admin, name, keys, validate_only=True)


async def apply_resources(
    admin: KafkaAdmin, changes: Sequence[ResourceDifference], to_set: Sequence[ScramCredential]
) -> int:
    """Returns the number of requests. Raises ClusterError."""
    subscriptions = altered(changes, FileSection.SUBSCRIPTIONS)
    for name, keys in subscriptions.items():
        await alter_subscription(admin, name, keys)
    users = altered(changes, FileSection.SCRAM_USERS)
    deletions = [(user, mechanism) for user, mechanism, iterations in credentials(users) if iterations is None]
    if to_set or deletions:
        await alter_scram_users(admin, to_set, deletions)
    return len(subscriptions) + bool(to_set or deletions)


def undo_sections(changes: Sequence[ResourceDifference]) -> dict[str, Any]:
    """For `quota_file`; credentials that were there before cannot be brought back."""
    before = {section: undone(changes, section) for section in FileSection}
    return {section.value: _written(section, of_section) for section, of_section in before.items() if of_section}


def exported_sections(state: ClusterState, known: Sequence[DeclaredScramUser]) -> dict[str, Any]:
    """For `quota_file`. `known`: where passwords are, which is kept."""
    return {section.value: _written(section, resources, known) for section, resources in state.resources.items()}


def _written(section: FileSection, resources: DeclaredResources, known: Sequence[DeclaredScramUser] = ()) -> Any:
    if section is FileSection.SUBSCRIPTIONS:
        return {name: dict(keys) for name, keys in resources.items()}
    places = {(one.user, one.mechanism): one for one in known}
    return [
        {"user": user, "mechanism": mechanism, "iterations": None if iterations is None else int(iterations)}
        | _place(places.get((user, mechanism)))
        for user, mechanism, iterations in credentials(resources)
    ]


def _place(known: DeclaredScramUser | None) -> dict[str, str]:
    if known is None:
        return {}
    places = {"password_file": known.password_file, "password_env": known.password_env}
    return {name: value for name, value in places.items() if value}


def _subscriptions(content: Any) -> DeclaredResources:
    """A key without a value must not exist."""
    gone = {
        name: dict.fromkeys(key for key, value in keys.items() if value is None and key in DEFAULTS)
        for name, keys in (content.items() if isinstance(content, dict) else ())
        if isinstance(keys, dict)
    }
    try:
        resources = parsed(_without(content, gone), MATCH_KEYS)
    except SubscriptionFileError as exc:
        raise DeclaredQuotaError([f"subscriptions: {fault}" for fault in exc.faults]) from exc
    names = dict.fromkeys([*resources, *gone])
    set_keys = {name: {key: value or None for key, value in keys.items()} for name, keys in resources.items()}
    return {name: {**set_keys.get(name, {}), **gone.get(name, {})} for name in names}


def _without(content: Any, gone: Mapping[str, Mapping[str, None]]) -> Any:
    """What the parser of subscriptions checks: it has no keys that must not exist."""
    if not isinstance(content, dict):
        return content
    return {
        name: {key: value for key, value in keys.items() if key not in gone[name]} if name in gone else keys
        for name, keys in content.items()
    }


def _password(one: DeclaredScramUser) -> str:
    what = f"the password of {one.user!r} ({one.mechanism})"
    if one.password_env:
        password = os.environ.get(one.password_env, "")
    elif one.password_file:
        password = _first_line(Path(one.password_file), what)
    else:
        raise ArgumentError(f"{what} is needed: give password_file or password_env")
    if not password:
        raise ArgumentError(f"{what} is empty: {one.password_env or one.password_file}")
    return password


def _first_line(path: Path, what: str) -> str:
    try:
        return path.read_text("utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as exc:
        raise ArgumentError(f"{what} cannot be read from {path}: {getattr(exc, 'strerror', None) or exc}") from exc
