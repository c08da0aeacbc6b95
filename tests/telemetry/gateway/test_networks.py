"""telemetry/gateway/networks.py, and the addresses that the gateway connects to."""

from __future__ import annotations

import pytest

from telemetry.gateway.broker_ports import allowed_address
from telemetry.gateway.networks import is_in, networks_of
from tests.kit.grpc_servers import in_loop


def test_networks_are_parsed_from_cidr_or_address() -> None:
    networks = networks_of(["10.1.2.3/8", " 192.0.2.7", "2001:db8::/32"])
    assert all(is_in(address, networks) for address in ("10.255.0.1", "192.0.2.7", "2001:db8::5", "::ffff:10.0.0.1"))
    assert not any(is_in(address, networks) for address in ("11.0.0.1", "192.0.2.8", "2001:db9::5", "::ffff:11.0.0.1"))
    with pytest.raises(ValueError, match="not appear to be"):
        networks_of(["10.0.0.0/33"])


@in_loop
async def test_broker_outside_allowed_networks_is_refused() -> None:
    assert await allowed_address("anywhere.example", 9092, ()) == "anywhere.example"
    assert await allowed_address("localhost", 9092, networks_of(["127.0.0.0/8", "::1"])) in ("127.0.0.1", "::1")
    with pytest.raises(PermissionError, match="upstream_networks"):
        await allowed_address("127.0.0.1", 9092, networks_of(["10.0.0.0/8"]))
