"""Attacks on the authentication of a gateway, while a neighbour that is authenticated pushes and loses nothing."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.attack.victim import MB, Report, watched
from tests.kit.network import push, subscription
from tests.kit.raw_connection import RawConnection
from tests.kit.secure_cluster import REAUTHENTICATION_MS, SecureCluster, password
from tests.kit.serving import Served, eventually, rows

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
    subscriptions = directory / "subscriptions.yaml"
    subscriptions.write_text(f"all: {{metrics: '*', interval.ms: {INTERVAL_MS}}}\n")
    config = directory / "headroom.yaml"
    config.write_text(f"subscriptions: {subscriptions}\n")
    arguments = ["--upstream", cluster.bootstrap("SASL_PLAINTEXT"), "--security-protocol", "SASL_PLAINTEXT"]
    arguments += ["--command-config", str(cluster.command_config("SASL_PLAINTEXT")), "--config", str(config)]
    with Served(directory, *arguments) as running:
        yield running


def handshake(connection: RawConnection) -> int:
    """The error code."""
    return int(struct.unpack_from(">h", connection.ask(HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN"))[0])


def plain(user: str, secret: str) -> bytes:
    """The body of SaslAuthenticate, version 1."""
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


class Neighbour:
    """Pushes one point with an own number at each call, as alice, whose sessions end after some seconds."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._connection: RawConnection | None = None
        self._until_s = 0.0
        self.acknowledged: set[int] = set()
        self.number = int(time.time() * 1000)

    def __call__(self) -> bool:
        if self._connection is None or time.monotonic() > self._until_s:
            self.close()
            self._connection, self._until_s = signed_in(self._served, "alice"), time.monotonic() + RENEWED_S
            _, self._instance_id, self._subscription_id, _ = subscription(self._connection)
        self.number += 1
        if push(self._connection, self._instance_id, self._subscription_id, self.number):
            return False
        self.acknowledged.add(self.number)
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)


def stored(served: Served) -> dict[str, set[int]]:
    """The values of points by the principal that they are recorded of."""
    sql = "SELECT principal, groupArray(toUInt64(value)) FROM headroom.client_metrics GROUP BY principal"
    return {str(principal): {int(value) for value in values} for principal, values in rows(served.sql, sql)}


class Siege:
    """An attack beside a neighbour. A context manager; at its end nothing of the neighbour is lost."""

    def __init__(self, served: Served, tried: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._served = served
        self._neighbour = Neighbour(served)
        process = psutil.Process(served.process.pid)
        self._watched = watched(tried, process, self._neighbour, capsys, 1.05 * INTERVAL_MS / 1000)

    def __enter__(self) -> Report:
        return self._watched.__enter__()

    def __exit__(self, *failure: object) -> None:
        self._watched.__exit__(*failure)  # type: ignore[arg-type] # the three of a context manager
        self._neighbour.close()
        if failure[0] is None:
            wanted = self._neighbour.acknowledged
            assert wanted
            eventually(lambda: wanted - stored(self._served).get("alice", set()), lambda lost: not lost)


def test_second_handshake_as_another_user_changes_nobody(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka lets a session be renewed by its own user only."""
    with Siege(served, "carol authenticates again as bob, with the right and with a wrong password", capsys) as report:
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
    with Siege(served, f"20 connections send a token of {TOKEN_BYTES // MB} MB each", capsys) as report:
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
    with Siege(served, "tokens and requests while the answer to a token is pending", capsys) as report:
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
    with Siege(served, "30 sessions that end amid a produce request of 1 MB", capsys) as report:
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
