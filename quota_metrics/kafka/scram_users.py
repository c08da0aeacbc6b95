"""Reads and alters the SCRAM credentials of a cluster (KIP-554, Kafka 2.7 and later)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quota_metrics.kafka.admin import NOT_CONTROLLER, KafkaAdmin
from quota_metrics.kafka.errors import UnsupportedError, check
from quota_metrics.kafka.frames import NegotiatedRequest
from quota_metrics.kafka.sasl import salted_password

_DESCRIBE: Final = 50
_ALTER: Final = 51
_MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}  # ScramMechanism.type
_NAMES = {number: name for name, number in _MECHANISMS.items()}
_SALT_BYTES = 24


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """To set. `mechanism` is SCRAM-SHA-256 or SCRAM-SHA-512."""

    user: str
    mechanism: str
    iterations: int
    password: str = field(repr=False)


async def read_scram_users(admin: KafkaAdmin) -> dict[str, dict[str, str]]:
    """User -> mechanism -> iterations, of all users. Raises ClusterError."""
    response = await _sent(admin, NegotiatedRequest(_DESCRIBE, {"users": None}))
    check("DescribeUserScramCredentials", response.error_code, response.error_message)
    users: dict[str, dict[str, str]] = {}
    for result in response.results:
        check(f"DescribeUserScramCredentials of {result.user!r}", result.error_code, result.error_message)
        found = {
            _NAMES.get(info.mechanism, str(info.mechanism)): str(info.iterations) for info in result.credential_infos
        }
        users[result.user] = found
    return users


async def alter_scram_users(
    admin: KafkaAdmin, credentials: Iterable[ScramCredential], deletions: Sequence[tuple[str, str]] = ()
) -> None:
    """Sets credentials and deletes those of (user, mechanism). Raises ClusterError."""
    fields = {
        "deletions": [{"name": user, "mechanism": _MECHANISMS[mechanism]} for user, mechanism in deletions],
        "upsertions": [_upsertion(credential) for credential in credentials],
    }
    request = NegotiatedRequest(_ALTER, fields)
    response = await _sent(admin, request)
    if any(result.error_code == NOT_CONTROLLER for result in response.results):  # brokers with ZooKeeper do not forward
        cluster = await admin.describe_cluster()
        response = await admin.send(request, node_id=cluster.controller_id)
    for result in response.results:
        check(f"the change of the SCRAM user {result.user!r}", result.error_code, result.error_message)


async def _sent(admin: KafkaAdmin, request: NegotiatedRequest) -> Any:
    try:
        return await admin.send(request)
    except UnsupportedError as exc:
        raise UnsupportedError("the brokers have no API for SCRAM users, which Kafka 2.7 and later have") from exc


def _upsertion(credential: ScramCredential) -> dict[str, Any]:
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = "sha" + credential.mechanism.removeprefix("SCRAM-SHA-")
    return {
        "name": credential.user,
        "mechanism": _MECHANISMS[credential.mechanism],
        "iterations": credential.iterations,
        "salt": salt,
        "salted_password": salted_password(digest, credential.password, salt, credential.iterations),
    }
