"""`headroom verify-client`: its reports and its exit status, with a client that breaks off."""

import json
import socket
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.kit.wire import NEW_ID, connect, error_code, push, read_frame, request, subscribed

UNKNOWN_ID = bytes(15) + b"\x09"


def verification(*options: str) -> tuple[subprocess.Popen[str], int]:
    """The command and its port."""
    command = [sys.executable, "-m", "headroom", "verify-client", "--listen", "127.0.0.1:0", "--interval", "100"]
    process = subprocess.Popen(
        [*command, "--patience", "200", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    return process, int(process.stderr.readline().rpartition(":")[2])


def broken_off(client: socket.socket) -> bytes:
    """Asks for a subscription, pushes at once under another id, and hangs up; returns the push."""
    with client:
        client.sendall(request(71, NEW_ID + b"\0"))
        _, subscription_id = subscribed(read_frame(client))
        frame = push(UNKNOWN_ID, subscription_id, 0, b"")
        client.sendall(frame)
        assert error_code(read_frame(client)) == 0
    return frame[4:]


def test_json_names_rules_and_frames() -> None:
    process, port = verification("--output", "json")
    frame = broken_off(connect(port))
    report, _ = process.communicate(timeout=30)
    assert process.returncode == 4
    found: dict[str, dict[str, Any]] = {each["rule"]: each for each in json.loads(report)}
    assert found["first-get"]["outcome"] == "pass"
    assert found["instance-id"]["frame"] == frame.hex()
    assert found["instance-id"]["frame_bytes"] == len(frame)
    assert "without a terminating push" in found["terminating-push"]["reason"]
    assert found["cumulative"]["outcome"] == "not-seen"


def test_junit_has_a_case_for_each_rule() -> None:
    process, port = verification("--output", "junit")
    broken_off(connect(port))
    report, _ = process.communicate(timeout=30)
    suite = ElementTree.fromstring(report)
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases["instance-id"] == ["failure"]
    assert cases["first-get"] == []
    assert cases["cumulative"] == ["skipped"]
    assert int(suite.get("tests", "")) == len(cases)
    assert int(suite.get("failures", "")) == sum(children == ["failure"] for children in cases.values())


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", bytes(4), b"\x7f" * 64, bytes([0, 0, 0, 12]) + b"\x47" * 12]
)
def test_strangers_cost_the_client_nothing(sent: bytes) -> None:
    process, port = verification("--timeout", "3")
    with connect(port) as stranger:
        stranger.sendall(sent)
        with connect(port) as client:
            client.sendall(request(71, NEW_ID + b"\0"))
            subscribed(read_frame(client))
        assert stranger.recv(1) == b""
    report, _ = process.communicate(timeout=30)
    assert process.returncode == 4  # it pushed nothing
    assert "first-get" in report


def test_client_that_never_comes() -> None:
    process, _ = verification("--timeout", "1")
    report, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "not-seen" in report
