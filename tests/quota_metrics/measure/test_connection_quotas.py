"""ConnectionQuotas with many addresses; its decisions are compared with Kafka's own by `make oracle`."""

from __future__ import annotations

import pytest

from quota_metrics.measure.connection_quotas import ADMITTED, AddressLimits, ConnectionQuotas, address_limits

NOW_MS = 1_700_000_000_000


def admitted(quotas: ConnectionQuotas, address: str, times: int) -> int:
    return sum(quotas.connect(address, 1, NOW_MS) == ADMITTED for _ in range(times))


def test_addresses_of_one_ipv6_network_share_a_window_above_256() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0, rate_of={"2001:db8::ffff": 1.0}))
    assert [admitted(quotas, f"2001:db8::{n:x}", 11) for n in range(256)] == [10] * 256
    assert sum(admitted(quotas, f"2001:db8::{n:x}", 11) for n in range(256, 600)) == 10
    assert admitted(quotas, "2001:db8::ffff", 11) == 10  # a rule of its own
    assert admitted(quotas, "2001:db8:0:1::1", 11) == 10  # another network
    assert admitted(quotas, "192.0.2.1", 11) == 10


def test_windows_of_a_network_are_forgotten_with_their_addresses() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0))
    for n in range(300):
        quotas.connect(f"2001:db8::{n:x}", 1, NOW_MS)
    quotas.uses(NOW_MS + 4_000_000)
    later = NOW_MS + 4_000_001
    for n in range(256):  # each has a window again
        assert quotas.connect(f"2001:db8::{n:x}", 1, later) == ADMITTED
    assert len(quotas.uses(later)) == 256


def test_a_reading_has_the_thousand_most_urgent_addresses() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0))
    for n in range(1_500):
        quotas.connect(f"10.0.{n // 256}.{n % 256}", 1, NOW_MS)
    admitted(quotas, "192.0.2.1", 5)
    admitted(quotas, "192.0.2.2", 20)
    uses = quotas.uses(NOW_MS)
    assert [(use.address, use.throttled) for use in uses[:2]] == [("192.0.2.2", 10), ("192.0.2.1", 0)]
    assert (len(uses), quotas.left_out) == (1_000, 502)


def test_any_number_of_addresses_is_admitted() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0))
    for n in range(21_000):
        assert quotas.connect(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1, NOW_MS) == ADMITTED
    assert len(quotas.uses(NOW_MS)) == 1_000
    assert quotas.left_out == 19_000


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("::ffff:192.0.2.1:3", {"192.0.2.1": 3}),
        ("[2001:db8::1]:3, 10.0.0.1:4", {"2001:db8::1": 3, "10.0.0.1": 4}),
        ("app.example:5", {"192.0.2.7": 5, "2001:db8::7": 5}),
        ("gone.example:5,:1,x:,y:z,", {}),
    ],
)
def test_overrides_name_addresses_in_any_spelling_and_hosts(overrides: str, expected: dict[str, int]) -> None:
    hosts = {"app.example": ["192.0.2.7", "2001:db8:0::7"]}
    assert address_limits({"max.connections.per.ip.overrides": overrides}, {}, hosts).most_of == expected


def test_rates_of_host_names_and_short_forms_apply_to_their_addresses() -> None:
    hosts = {"app.example": ["192.0.2.7", "2001:db8:0::7"]}
    rates = {"app.example": 5.0, "10.1": 6.0, "gone.example": 7.0, None: 8.0000001}
    limits = address_limits({}, rates, hosts)
    assert limits.rate_of == {"192.0.2.7": 5.0, "2001:db8::7": 5.0, "10.0.0.1": 6.0}
    assert limits.rate == 8.0  # a broker takes the whole number
