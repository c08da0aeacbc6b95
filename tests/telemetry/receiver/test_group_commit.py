"""The group commit: when it flushes, and that answers keep their order whenever it does."""

import asyncio
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from telemetry.gateway.client_connection import ClientConnection, ListenerContext
from telemetry.gateway.security.listener_security import ListenerSecurity
from telemetry.receiver.group_commit import GroupCommit
from tests.kit import wire
from tests.kit.gateways import new_gateway
from tests.kit.grpc_servers import in_loop

MANY = 1_000


def ignore(_: bool) -> None:
    pass


class Transport:
    """Keeps what is written to the client."""

    def __init__(self) -> None:
        self.written = b""

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("127.0.0.1", 4000), "sockname": ("127.0.0.1", 9092)}.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += data


@in_loop
async def test_a_turn_with_many_waiting_flushes_several_times_and_answers_all() -> None:
    flushes: list[int] = []
    answered: list[bool] = []
    commit = GroupCommit(lambda: flushes.append(len(answered)), ignore)
    for _ in range(MANY):
        commit.soon(answered.append)
    assert 1 < len(flushes) < MANY / 10
    assert len(answered) < MANY
    await asyncio.sleep(0)
    assert answered == [True] * MANY
    commit.soon(answered.append)
    await asyncio.sleep(0)
    assert len(answered) == MANY + 1
    assert flushes == sorted(set(flushes))  # none without a reason


@in_loop
async def test_flush_that_syncs_runs_once_in_a_turn() -> None:
    flushes: list[int] = []
    answered: list[bool] = []
    commit = GroupCommit(lambda: flushes.append(len(answered)), ignore, most_waiting=None)
    for _ in range(MANY):
        commit.soon(answered.append)
    await asyncio.sleep(0)
    assert (flushes, answered) == ([0], [True] * MANY)


@pytest.mark.parametrize("failure", [None, OSError(28, "No space left on device"), KeyError("a bug")])
@in_loop
async def test_all_are_answered_when_a_flush_or_an_answer_fails(failure: Exception | None) -> None:
    answered: list[bool] = []
    settled: list[bool] = []

    def flush() -> None:
        if failure:
            raise failure

    def broken(_: bool) -> None:
        raise KeyError("a bug")

    commit = GroupCommit(flush, settled.append)
    with capture_logs():
        for done in (broken, answered.append):
            commit.soon(done)
        await asyncio.sleep(0)
    assert settled == answered == [failure is None]


def test_answers_keep_their_order_when_a_push_is_committed_at_once() -> None:
    """A throttled GetTelemetrySubscriptions and a push in one piece, while others wait for the flush."""

    async def turn(others: int) -> bytes:
        gateway = new_gateway(local=lambda *_: {})
        gateway.receiver.rules.replace_all({"all": {"metrics": "*", "interval.ms": "1000"}}, 0)
        listener = ListenerContext()
        listener.shared, listener.advertised_host = gateway, None
        listener.security, listener.ports = ListenerSecurity(), gateway.ports
        client, transport = ClientConnection(listener, -1), Transport()
        client.connection_made(cast(Any, transport))
        get = wire.request(wire.GET, wire.NEW_ID + b"\0")
        client.data_received(get)
        await asyncio.sleep(0)
        instance_id, subscription_id = wire.subscribed(transport.written)
        transport.written = b""
        for _ in range(others):
            gateway.commit.soon(ignore)
        again = wire.request(wire.GET, instance_id + b"\0")
        client.data_received(again + wire.push(instance_id, subscription_id, 4, b"p" * 200))
        await asyncio.sleep(0)
        return transport.written

    answers = {others: asyncio.run(turn(others)) for others in range(130)}
    push_answer = answers[0][-wire.ANSWER_BYTES :]
    assert wire.error_code(push_answer) == 0
    assert len(answers[0]) > 2 * wire.ANSWER_BYTES
    assert set(answers.values()) == {answers[0]}
