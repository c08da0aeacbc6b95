"""Reads and alters the SCRAM credentials of a cluster (KIP-554, Kafka 2.7 and later)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.alter_user_scram_credentials.v0 import request as alter_request
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.static.primitive import i8, i32

from quota_metrics.kafka.admin import NOT_CONTROLLER, KafkaAdmin
from quota_metrics.kafka.errors import UnsupportedError, check
from quota_metrics.kafka.sasl import salted_password

_MECHANISMS = {"SCRAM-SHA-256": i8(1), "SCRAM-SHA-512": i8(2)}  # ScramMechanism.type
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
    response = await _sent(admin, DescribeUserScramCredentialsRequest(users=None))
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
    request = alter_request.AlterUserScramCredentialsRequest(
        deletions=tuple(
            alter_request.ScramCredentialDeletion(name=user, mechanism=_MECHANISMS[mechanism])
            for user, mechanism in deletions
        ),
        upsertions=tuple(_upsertion(credential) for credential in credentials),
    )
    response = await _sent(admin, request)
    if any(result.error_code == NOT_CONTROLLER for result in response.results):  # brokers with ZooKeeper do not forward
        cluster = await admin.describe_cluster()
        response = await admin.send(request, node_id=cluster.controller_id)
    for result in response.results:
        check(f"the change of the SCRAM user {result.user!r}", result.error_code, result.error_message)


async def _sent(admin: KafkaAdmin, request: Any) -> Any:
    try:
        return await admin.send(request)
    except UnsupportedError as exc:
        raise UnsupportedError("the brokers have no API for SCRAM users, which Kafka 2.7 and later have") from exc


def _upsertion(credential: ScramCredential) -> alter_request.ScramCredentialUpsertion:
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = "sha" + credential.mechanism.removeprefix("SCRAM-SHA-")
    return alter_request.ScramCredentialUpsertion(
        name=credential.user,
        mechanism=_MECHANISMS[credential.mechanism],
        iterations=i32(credential.iterations),
        salt=salt,
        salted_password=salted_password(digest, credential.password, salt, credential.iterations),
    )
