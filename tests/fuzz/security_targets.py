"""Hostile bytes in authentications: SASL requests and tokens, TLS handshakes, subjects of certificates."""

import base64
import contextlib
import functools
import random
import ssl
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from quota_metrics.kafka.primitives import ProtocolError
from telemetry.gateway.broker_ports import BrokerNames
from telemetry.gateway.connection import ProxiedConnection
from telemetry.gateway.security.client_identity import SaslSession
from telemetry.gateway.security.listener_security import ListenerTls
from telemetry.gateway.security.sasl_tokens import READABLE, read_claim
from telemetry.gateway.security.ssl_principal import NoMatchingRuleError, principal_mapper
from telemetry.subscriptions.java.x500_name import CertificateError, subject_name
from telemetry.wire.apis import APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from telemetry.wire.proxy_protocol import bytes_wanted, parse_header
from tests.fuzz.seeds import request_frame
from tests.kit.certificates import CertificateAuthority
from tests.kit.raw_connection import client_hello
from tests.oracle.certificates_oracle import certificate_of, drawn_name
from tests.telemetry.wire.proxy_hop import header as proxy_header

NOW_MS = 1_795_000_000_000
ACCEPTED, REFUSED = 0, 58  # SASL_AUTHENTICATION_FAILED
_TELEMETRY = (request_frame(71, 0, bytes(17)), request_frame(72, 0, bytes(16) + b"\0\0\0\x01\0\0\x01\0"))

Connect = Callable[..., ProxiedConnection]
Target = Callable[[bytes], None]


def tokens() -> dict[str, bytes]:
    """First messages of clients that authenticate as alice."""
    jwt = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b"{}", b'{"sub":"alice"}', b""))
    return {
        "PLAIN": b"\0alice\0alice-secret",
        "SCRAM-SHA-256": b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
        "SCRAM-SHA-512": b"n,a=alice,n=al=2Cice,r=fyko,tokenauth=true",
        "OAUTHBEARER": b"n,,\x01auth=Bearer " + jwt.encode() + b"\x01\x01",
        "GSSAPI": b"\x60\x82\x02",
    }


def dialogues() -> list[bytes]:
    """Requests of an authentication one behind the other, with telemetry at the end."""
    found = []
    for mechanism, token in tokens().items():
        name = struct.pack(">h", len(mechanism)) + mechanism.encode()
        sized = struct.pack(">i", len(token)) + token
        found.append(request_frame(SASL_HANDSHAKE, 1, name) + request_frame(SASL_AUTHENTICATE, 1, sized))
        found.append(request_frame(SASL_HANDSHAKE, 0, name) + sized)
        compact = bytes([len(token) + 1]) + token if len(token) < 127 else b""
        if compact:
            found.append(request_frame(SASL_HANDSHAKE, 1, name) + request_frame(SASL_AUTHENTICATE, 2, compact + b"\0"))
    return [dialogue + b"".join(_TELEMETRY) for dialogue in found]


@functools.cache
def listener_tls() -> ListenerTls:
    """With a certificate of its own. Its files are read once."""
    with tempfile.TemporaryDirectory(prefix="headroom-fuzz-") as directory:
        return ListenerTls(*CertificateAuthority(Path(directory)).issue("fuzz"), None, "none")


def security_targets(source: random.Random, connect: Connect) -> dict[str, tuple[Target, list[bytes]]]:
    """By name, with the seeds of each."""
    tls = listener_tls()
    hellos, said = [client_hello("broker-1.gateway.example") for _ in range(3)], list(tokens().values())
    return {
        "SASL that the broker refuses": (partial(_authentication, source, connect, REFUSED), dialogues()),
        "SASL that the broker accepts": (partial(_authentication, source, connect, ACCEPTED), dialogues()),
        "SASL token": (_token, said),
        "TLS handshake": (partial(_handshake, tls), hellos),
        "certificate subject": (_subject, [certificate_of(drawn_name(source)) for _ in range(5)]),
        "PROXY header": (_proxy_header, [proxy_header(("10.0.0.1", 7), ("10.0.0.2", 9092), one) for one in (1, 2)]),
        "server name": (_server_name, [b"broker-1.gateway.example"]),
    }


def _authentication(source: random.Random, connect: Connect, outcome: int, data: bytes) -> None:
    """The client's bytes are damaged; the broker answers each request that reaches it with `outcome`."""
    sasl = SaslSession("sub", lambda _: None, time.monotonic)
    connection = connect(sasl=sasl)
    seen, accepted = 0, False
    try:
        for piece in _pieces(source, data):
            connection.from_client(piece, NOW_MS)
            forwarded = connection.to_upstream
            if not accepted:
                assert not connection.unflushed, "a push was accepted before the client was authenticated"
            while len(forwarded) - seen >= 12:
                size, key, version, correlation_id = struct.unpack_from(">ihhi", forwarded, seen)
                seen += 4 + size
                if sasl.raw and outcome == REFUSED:  # a refused raw token: the broker closes the connection
                    raise ProtocolError("closed")
                answer = _answer(key, version, correlation_id, outcome)
                accepted = accepted or outcome == ACCEPTED
                connection.from_upstream(struct.pack(">i", len(answer)) + answer, NOW_MS)
                connection.to_client = b""
                if not accepted:
                    assert sasl.principal is None
    except (ProtocolError, struct.error):
        pass
    if not accepted:
        assert sasl.principal is None
    connection.closed()


def _pieces(source: random.Random, data: bytes) -> list[bytes]:
    """Mostly frame by frame, as a client waits for each answer."""
    pieces: list[bytes] = []
    while data and len(pieces) < 20:
        size = 4 + int.from_bytes(data[:4], "big")
        cut = size if size <= len(data) and source.random() < 0.9 else source.randint(1, len(data))
        pieces.append(data[:cut])
        data = data[cut:]
    return pieces


def _answer(key: int, version: int, correlation_id: int, outcome: int) -> bytes:
    """The broker accepts each handshake, and refuses or accepts each token."""
    head = struct.pack(">i", correlation_id)
    if key == SASL_HANDSHAKE:
        return head + struct.pack(">hi", 0, 0)
    if key != SASL_AUTHENTICATE:
        return head + bytes(20)
    if APIS[key].flexible(max(version, 0)):
        return head + struct.pack(">BhBBqB", 0, outcome, 0, 1, 0, 0)
    return head + struct.pack(">hhi", outcome, -1, 0) + (bytes(8) if version == 1 else b"")


def _proxy_header(data: bytes) -> None:
    """A header is read to its end and no further, or refused within its longest length."""
    header = b""
    with contextlib.suppress(ProtocolError):
        while wanted := bytes_wanted(header, 1 if data.startswith(b"P") else 2):
            if len(header) + wanted > len(data):
                return
            header = data[: len(header) + wanted]
        parse_header(header)
    assert len(header) <= 16 + 2_048


def _token(data: bytes) -> None:
    for mechanism in (*READABLE, "GSSAPI"):
        user, _ = read_claim(mechanism, data, "sub")
        assert user is None or (user and len(user) <= len(data))


def _handshake(tls: ListenerTls, data: bytes) -> None:
    """OpenSSL and our callback raise only ssl errors, and a finished handshake keeps no state."""
    received = ssl.MemoryBIO()
    received.write(data)
    server = tls.context.wrap_bio(received, ssl.MemoryBIO(), server_side=True)
    with contextlib.suppress(ssl.SSLError):
        server.do_handshake()
    del server
    assert len(tls.server_names) == 0


def _subject(data: bytes) -> None:
    try:
        name = subject_name(data)
    except CertificateError:
        return
    with contextlib.suppress(NoMatchingRuleError):
        principal_mapper("RULE:^CN=(.*?),.*$/$1/L, RULE:^(.*)O=(.*)$/$2/, DEFAULT")(name)


def _server_name(data: bytes) -> None:
    names = BrokerNames("broker-{id}.gateway.example")
    node_id = names.node_id(data.decode("latin-1"))
    assert node_id is None or names.node_id(names.address_of(node_id, 1)[0]) == node_id
