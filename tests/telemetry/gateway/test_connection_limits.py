"""telemetry/gateway/connection_limits.py, and timeouts: how many connections, how many held bytes, for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from telemetry.gateway.client_connection import TimedConnection, close_idle
from telemetry.gateway.connection_limits import Admission, AdmissionLimits, Reason


class Client(TimedConnection):
    """Records why it was closed."""

    def __init__(self, *, waits: bool = False) -> None:
        self.reasons: list[Reason] = []
        self._waits = waits

    @property
    def waits_for_broker(self) -> bool:
        return self._waits

    def close_for(self, reason: Reason) -> None:
        self.reasons.append(reason)


def admission(**limits: int) -> Admission[str]:
    return Admission(AdmissionLimits(**limits))


def test_connections_are_limited_in_total_and_per_address() -> None:
    some = admission(max_connections=3, max_connections_per_address=2)
    assert [some.admit("10.0.0.1") for _ in range(3)] == [None, None, Reason.TOO_MANY_FROM_ADDRESS]
    assert [some.admit(address) for address in ("10.0.0.2", "10.0.0.3")] == [None, Reason.TOO_MANY_CONNECTIONS]
    some.left("a", "10.0.0.1")
    assert some.admit("10.0.0.1") is None
    assert +some.refused == {Reason.TOO_MANY_FROM_ADDRESS: 1, Reason.TOO_MANY_CONNECTIONS: 1}


def test_ipv6_is_limited_per_network_and_mapped_ipv4_per_address() -> None:
    some = admission(max_connections=9, max_connections_per_address=1)
    first = ["2001:db8::1", "2001:db8:0:1::1", "::ffff:10.0.0.1", "fe80::1%eth0"]
    assert [some.admit(address) for address in first] == [None] * 4
    again = ["2001:db8:0:0:ffff::2", "10.0.0.1"]
    assert [some.admit(address) for address in again] == [Reason.TOO_MANY_FROM_ADDRESS] * 2


def test_each_request_has_its_own_deadline() -> None:
    some = admission(frame_timeout_s=30)
    some.unfinished("pipelining", 1, 10, 0.0)
    some.unfinished("slow", 7, 10, 1.0)
    some.unfinished("pipelining", 2, 10, 20.0)
    some.unfinished("slow", 7, 20, 30.0)
    assert some.overdue(30.9) == []
    assert some.overdue(31.1) == [("slow", Reason.FRAME_TIMEOUT)]
    some.left("slow", "10.0.0.1")
    assert some.overdue(49.9) == []
    assert some.overdue(50.1) == [("pipelining", Reason.FRAME_TIMEOUT)]


def test_unfinished_handshake_times_out() -> None:
    some = admission(handshake_timeout_s=10)
    for client in ("quick", "slow"):
        some.handshake_began(client, 0.0)
    some.handshake_done("quick")
    assert some.overdue(10.1) == [("slow", Reason.HANDSHAKE_TIMEOUT)]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3), st.integers(0, 60)), max_size=60))
def test_held_bytes_are_bounded_by_closing_the_oldest_unfinished_requests(steps: list[tuple[str, int, int]]) -> None:
    some, held = admission(max_held_bytes=100), dict[str, int]()
    begun: dict[str, tuple[int, int]] = {}  # number of the request, and when
    for now, (client, number, size) in enumerate(steps):
        if number:
            held[client] = size
            if begun.get(client, (0, 0))[0] != number:
                begun[client] = (number, now)
            for victim in some.unfinished(client, number, size, float(now)):
                assert victim == min(held, key=lambda name: begun[name][1])
                some.finished(victim)
                held.pop(victim)
                begun.pop(victim)
        else:
            some.finished(client)
            held.pop(client, None)
            begun.pop(client, None)
        assert some.held_bytes == sum(held.values()) <= 100


def test_idle_connections_are_closed_later_when_waiting_for_a_broker() -> None:
    quiet, busy, waiting = Client(), Client(), Client(waits=True)
    for sweep in range(27):
        busy.active = True
        close_idle([client for client in (quiet, busy, waiting) if not client.reasons])
        assert bool(quiet.reasons) == (sweep >= 9)
    assert (quiet.reasons, busy.reasons, waiting.reasons) == ([Reason.IDLE], [], [Reason.IDLE])
