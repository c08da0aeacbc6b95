"""Attacks on the authentication of a gateway, while a neighbour that is authenticated pushes and loses nothing."""

import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.attack.victim import MB, Neighbour, Report, watched
from tests.kit.network import push, subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.secure_cluster import REAUTHENTICATION_MS, SecureCluster, password
from tests.kit.serving import Served, config_file, eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse]

PRODUCE, METADATA, HANDSHAKE, AUTHENTICATE = 0, 3, 17, 36
TOKEN_BYTES = 100 * MB
INTERVAL_MS = 100
RENEWED_S = REAUTHENTICATION_MS / 2_000
HELD_MB = 64.0  # of the process; 20 tokens of 100 MB would be 2 GB


@pytest.fixture(scope="module")
def cluster(java: str, kafka_libs: Path) -> Iterator[SecureCluster]:
    with SecureCluster(java, kafka_libs, 1) as running:
        yield running


@pytest.fixture(scope="module")
def served(cluster: SecureCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("sasl")
    arguments = ["--upstream", cluster.bootstrap("SASL_PLAINTEXT"), "--security-protocol", "SASL_PLAINTEXT"]
    arguments += ["--command-config", str(cluster.command_config("SASL_PLAINTEXT"))]
    with Served(directory, *arguments, *config_file(directory, push_ms=INTERVAL_MS)) as running:
        yield running


def handshake(connection: RawConnection) -> int:
    """The error code."""
    return int(struct.unpack_from(">h", connection.ask(HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN"))[0])


def plain(user: str, secret: str) -> bytes:
    token = f"\0{user}\0{secret}".encode()
    return struct.pack(">i", len(token)) + token


def signed_in(served: Served, user: str) -> RawConnection:
    connection = RawConnection(served.kafka)
    assert handshake(connection) == 0
    assert connection.ask(AUTHENTICATE, 1, plain(user, password(user)))[:2] == b"\0\0"
    return connection


BEHIND = (
    (AUTHENTICATE, 1, plain("bob", password("bob"))),
    (METADATA, 1, struct.pack(">i", 0)),
    (HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN"),
    (72, 0, bytes(22) + b"\1\0"),
)


def stored(served: Served) -> dict[str, set[int]]:
    """The values of points by the principal that they are recorded of."""
    sql = "SELECT principal, groupArray(toUInt64(value)) FROM headroom.client_metrics GROUP BY principal"
    return {str(principal): {int(value) for value in values} for principal, values in rows(served.sql, sql)}


@contextmanager
def siege(served: Served, tried: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Report]:
    """An attack beside a neighbour, alice, whose sessions end after some seconds; nothing of hers is lost."""
    process = psutil.Process(served.process.pid)
    with (
        closing(Neighbour(lambda: signed_in(served, "alice"), RENEWED_S)) as neighbour,
        watched(tried, process, neighbour, capsys, 1.05 * INTERVAL_MS / 1000) as report,
    ):
        yield report
    assert neighbour.acknowledged
    eventually(lambda: neighbour.acknowledged - stored(served).get("alice", set()), lambda lost: not lost)


def test_second_handshake_as_another_user_changes_nobody(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka lets a session be renewed by its own user only."""
    with siege(served, "carol authenticates again as bob, with the right and with a wrong password", capsys) as report:
        for n, secret in enumerate([password("bob"), "wrong"] * 5):
            connection = signed_in(served, "carol")
            _, instance_id, subscription_id, _ = subscription(connection)
            assert push(connection, instance_id, subscription_id, n) == 0
            assert handshake(connection) == 0
            answer = connection.ask(AUTHENTICATE, 1, plain("bob", secret))
            assert answer[:2] != b"\0\0"
            connection.send(connection.frame(METADATA, 1, struct.pack(">i", 0)))
            assert connection.was_closed()
        report.shown = "refused by the broker, closed; no row of bob"
    eventually(lambda: stored(served).get("carol"), lambda values: values == set(range(10)))
    assert "bob" not in stored(served)


def test_token_of_100_mb_is_refused_by_its_length(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    with siege(served, f"20 connections send a token of {TOKEN_BYTES // MB} MB each", capsys) as report:
        for _ in range(20):
            with RawConnection(served.kafka) as connection:
                assert handshake(connection) == 0
                whole = connection.frame(AUTHENTICATE, 1, b"")
                head = struct.pack(">i", len(whole) - 4 + 4 + TOKEN_BYTES) + whole[4:] + struct.pack(">i", TOKEN_BYTES)
                try:
                    connection.send(head)
                    for _ in range(TOKEN_BYTES // MB):
                        connection.send(bytes(MB))
                except ConnectionError:
                    pass
                assert connection.was_closed()
        report.shown = "closed at its head"
    assert report.peak_mb < HELD_MB


def test_requests_behind_a_token_that_waits_are_refused(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The user of such a request would be the one that the token claims, which the broker has not accepted yet."""
    with siege(served, "tokens and requests while the answer to a token is pending", capsys) as report:
        for api_key, version, body in BEHIND:
            for _ in range(5):
                with RawConnection(served.kafka) as connection:
                    assert handshake(connection) == 0
                    token = connection.frame(AUTHENTICATE, 1, plain("bob", "wrong"))
                    connection.send(token + connection.frame(api_key, version, body))
                    assert connection.was_closed()
        report.shown = "closed, none is forwarded"
    assert "bob" not in stored(served)


def test_session_that_ends_amid_a_produce_ends_only_its_own(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Each produce begins before the session ends and has its last byte after it."""
    with siege(served, "30 sessions that end amid a produce request of 1 MB", capsys) as report:
        sessions = [signed_in(served, "carol") for _ in range(30)]
        for connection in sessions:
            frame = connection.frame(PRODUCE, 9, b"\0" + struct.pack(">hi", 1, 30_000) + b"\1" + bytes(MB))
            connection.send(frame[:-1])
        time.sleep(1.5 * REAUTHENTICATION_MS / 1000)
        for connection in sessions:
            try:
                connection.send(b"\0" + connection.frame(METADATA, 1, struct.pack(">i", 0)))
            except ConnectionError:
                continue
            assert connection.was_closed()
        report.shown = "closed after their end"
    assert served.metrics()["headroom_worker_restarts_total"] == 0
