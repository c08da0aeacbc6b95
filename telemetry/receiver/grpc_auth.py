"""Authenticates gRPC callers and determines which client a request belongs to. Sans-I/O.

An authenticated broker plug-in or sidecar states the facts of its client's connection in the request. Any other caller
is treated as the client itself: its identity is that of its own connection, and it cannot state another.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from exporters.model import ANONYMOUS, MAX_SOFTWARE_CHARS, NO_BROKER, UNKNOWN, Connection
from telemetry.proto.headroom.telemetry.v1 import telemetry_pb2 as pb
from telemetry.subscriptions.payer_budgets import Caller

LISTENER: Final = "GRPC"  # of callers without authentication, which are clients themselves
_MAX_CLIENT_ID_BYTES = 32_767  # the largest value of the length field in a Kafka request header
_MAX_CHARS = {"cluster": 255, "listener": 255, "principal": 4_096, "client_source_address": 255, "connection_id": 1_024}


class UnauthenticatedError(Exception):
    """The caller is not authenticated."""


class NotAllowedError(Exception):
    """The caller may not state a connection of another client."""


class MessageError(ValueError):
    """The message is invalid, and resending it unchanged cannot succeed."""


class Peer(NamedTuple):
    """The peer of a call. `subject`: the distinguished name of its verified certificate, as Kafka prints it."""

    address: str
    port: int
    subject: str | None
    trusted: bool  # to state other clients' connections


class Access:
    """Which callers are accepted: those with one of `tokens` or a certificate with one of `subjects` are authenticated.

    `direct`: callers without credentials are accepted as clients too.
    """

    def __init__(self, *, tokens: Iterable[str], subjects: Iterable[str], direct: bool) -> None:
        self._tokens = [_digest(token.encode()) for token in tokens]
        self._subjects = frozenset(subjects)
        self._direct = direct

    def is_trusted(self, authorization: Sequence[str | bytes], subject: str | None) -> bool:
        """`authorization`: all values of the header of that name. Raises UnauthenticatedError."""
        if authorization:
            value = authorization[0] if isinstance(authorization[0], bytes) else authorization[0].encode()
            scheme, _, token = value.partition(b" ")
            digest = _digest(token.strip())
            # Comparing equally long digests, and always all of them, leaks nothing about the tokens by timing.
            matches = sum(hmac.compare_digest(accepted, digest) for accepted in self._tokens)
            if len(authorization) == 1 and matches and scheme.lower() == b"bearer":
                return True
            raise UnauthenticatedError("the authorization header holds no known bearer token")
        if subject in self._subjects:
            return True
        if not self._direct:
            raise UnauthenticatedError("a known bearer token or client certificate is required")
        return False


def caller_of(peer: Peer, stated: pb.Connection | None, cluster: str) -> Caller:
    """Raises NotAllowedError, and MessageError when `stated` is not a valid connection."""
    if stated is None:
        connection = Connection(
            cluster=cluster,
            listener=LISTENER,
            principal=peer.subject or ANONYMOUS,
            source_address=peer.address,
            source_port=peer.port,
            software_name=UNKNOWN,
            software_version=UNKNOWN,
            broker_id=NO_BROKER,
        )
        return Caller(connection, None, f"grpc {peer.address} {peer.port}")
    if not peer.trusted:
        raise NotAllowedError("only an authenticated caller may set connection")
    for name, most in _MAX_CHARS.items():
        if len(getattr(stated, name)) > most:
            raise MessageError(f"connection.{name} is longer than {most} characters")
    if len(stated.client_id.encode()) > _MAX_CLIENT_ID_BYTES:
        raise MessageError(f"connection.client_id is longer than {_MAX_CLIENT_ID_BYTES} bytes")
    if stated.client_source_port > 65_535:
        raise MessageError(f"connection.client_source_port is {stated.client_source_port}")
    try:
        ipaddress.ip_address(stated.client_source_address)
    except ValueError as exc:
        raise MessageError("connection.client_source_address is not an IP address") from exc
    address, port = stated.client_source_address, stated.client_source_port
    connection = Connection(
        cluster=stated.cluster or cluster,
        listener=stated.listener,
        principal=stated.principal or ANONYMOUS,
        source_address=address,
        source_port=port,
        software_name=stated.client_software_name[:MAX_SOFTWARE_CHARS] or UNKNOWN,
        software_version=stated.client_software_version[:MAX_SOFTWARE_CHARS] or UNKNOWN,
        broker_id=stated.broker_id if stated.HasField("broker_id") else NO_BROKER,
    )
    # Connection ids are unique within a broker only.
    within = stated.connection_id or f"{address} {port}"
    connection_id = f"grpc {connection.cluster} {connection.broker_id} {within}"
    return Caller(connection, stated.client_id if stated.HasField("client_id") else None, connection_id)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
