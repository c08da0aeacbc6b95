"""The gRPC server of headroom.telemetry.v1: authenticates a call, applies the rules, waits for the flush, answers.

Internal errors are responses with error_code 89, as in the Kafka protocol; gRPC statuses report errors of the caller.
`GrpcEndpoint` is what the OTLP server is as well: sockets, TLS, limits, the caller's identity, the message of a call.
"""

import asyncio
import functools
import ssl
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import grpc
import grpc.aio

from exporters.listening_socket import end_of, listening_socket
from telemetry.receiver.group_commit import GroupCommit
from telemetry.receiver.grpc_auth import Access, MessageError, NotAllowedError, Peer, UnauthenticatedError
from telemetry.receiver.grpc_codec import SERVICE, GrpcMessages
from telemetry.receiver.telemetry_requests import Answer
from telemetry.subscriptions.java.x500_name import subject_name

Context: TypeAlias = grpc.aio.ServicerContext
_MAX_METADATA_BYTES = 16_384


class GrpcLimits(NamedTuple):
    """Limits per caller and for all callers together."""

    max_message_bytes: int
    max_connections: int
    max_concurrent_calls: int
    receive_timeout_s: float  # of a handshake, and from the headers of a call to the end of its message


class GrpcTls(NamedTuple):
    """PEM. With `client_ca` every caller must present a certificate signed by that CA."""

    certificate: bytes
    private_key: bytes
    client_ca: bytes | None


class GrpcEndpoint:
    """Runs a server for one service in the running loop."""

    def __init__(self, access: Access, limits: GrpcLimits, tls: GrpcTls | None) -> None:
        self._access = access
        self._limits = limits
        self._tls = tls

    async def serve(
        self,
        host: str,
        port: int,
        service: str,
        methods: Mapping[str, Callable[[object, Context], Awaitable[bytes]]],
        at_once: int | None,
    ) -> tuple[str, int]:
        """gRPC itself refuses more than `at_once` calls, as RESOURCE_EXHAUSTED. Raises OSError when the address cannot
        be used."""
        listening_socket(host, port).close()  # gRPC does not say why it cannot listen
        limits = self._limits
        options = [
            ("grpc.max_receive_message_length", limits.max_message_bytes),  # after decompression, too
            ("grpc.max_allowed_incoming_connections", limits.max_connections),
            ("grpc.max_concurrent_streams", limits.max_concurrent_calls),
            ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
            ("grpc.so_reuseport", 0),  # binding a port that another server uses must fail
            ("grpc.max_connection_idle_ms", 600_000),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
            ("grpc.http2.max_ping_strikes", 3),
            ("grpc.server_handshake_timeout_ms", int(limits.receive_timeout_s * 1000)),
        ]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=at_once)
        # As streams: gRPC calls a unary handler only after the message has arrived, too late for the limits.
        handlers = {name: grpc.stream_unary_rpc_method_handler(method) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._tls is None:
                bound = self._server.add_insecure_port(name)
            else:
                credentials = grpc.ssl_server_credentials(
                    [(self._tls.private_key, self._tls.certificate)],
                    root_certificates=self._tls.client_ca,
                    require_client_auth=self._tls.client_ca is not None,
                )
                bound = self._server.add_secure_port(name, credentials)
        except RuntimeError as exc:
            raise OSError(str(exc)) from exc
        await self._server.start()
        return host, bound

    async def stop(self, grace_s: float) -> None:
        """Stops accepting calls and waits at most `grace_s` for those in flight."""
        await self._server.stop(grace_s)

    def peer(self, context: Context) -> Peer:
        """Raises UnauthenticatedError."""
        authorization = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        subject: str | None = None  # of the caller's verified certificate, as the gateway names it
        if self._tls is not None and self._tls.client_ca is not None:
            certificates = context.auth_context().get("x509_pem_cert", ())
            try:
                if certificates:
                    subject = subject_name(ssl.PEM_cert_to_DER_cert(certificates[0].decode()))
            except ValueError as exc:  # CertificateError is one
                raise UnauthenticatedError(f"the certificate cannot be read: {exc}") from exc
        trusted = self._access.is_trusted(authorization, subject)
        # gRPC writes ipv4:ADDRESS:PORT or ipv6:[ADDRESS]:PORT, percent-encoded.
        host, _, port = urllib.parse.unquote(context.peer()).partition(":")[2].rpartition(":")
        return Peer(*end_of((host.strip("[]"), port)), subject, trusted)

    async def message(self, context: Context) -> bytes:
        """Reads the one message of a call that is handled as a stream. Raises MessageError and TimeoutError."""
        try:
            async with asyncio.timeout(self._limits.receive_timeout_s):
                message = await context.read()
        except TimeoutError as exc:
            raise TimeoutError("the message did not arrive in time") from exc
        if not isinstance(message, bytes):
            raise MessageError("the call has no message")
        return message


_Answer = Callable[[bytes, Peer, int], Answer]
_STATUS: Final[dict[type[Exception], grpc.StatusCode]] = {
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    MessageError: grpc.StatusCode.INVALID_ARGUMENT,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class GrpcServer(GrpcEndpoint):
    """Serves headroom.telemetry.v1.ClientTelemetryService in the running loop."""

    def __init__(
        self,
        messages: GrpcMessages,
        *,
        access: Access,
        commit: GroupCommit,
        now_ms: Callable[[], int],
        limits: GrpcLimits,
        tls: GrpcTls | None,
    ) -> None:
        super().__init__(access, limits, tls)
        self.refused: Counter[grpc.StatusCode] = Counter()
        self._messages = messages
        self._commit = commit
        self._now_ms = now_ms

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Raises OSError when the address cannot be used."""
        calls = {
            "GetTelemetrySubscriptions": functools.partial(self._call, self._messages.get_telemetry_subscriptions),
            "PushTelemetry": functools.partial(self._call, self._messages.push_telemetry),
        }
        return await self.serve(host, port, SERVICE, calls, self._limits.max_concurrent_calls)

    async def _call(self, answer: _Answer, _: object, context: Context) -> bytes:
        try:
            peer = self.peer(context)
            answered = answer(await self.message(context), peer, self._now_ms())
        except tuple(_STATUS) as exc:
            status, why = _STATUS[type(exc)], str(exc)
        else:
            is_safe = not answered.after_flush or await self._commit.flushed()
            return answered.body if is_safe else answered.refusal
        self.refused[status] += 1
        # After `except`: gRPC keeps an exception that ends a call, with all that it refers to, until a full collection.
        await context.abort(status, why)
        return b""  # abort() raises
