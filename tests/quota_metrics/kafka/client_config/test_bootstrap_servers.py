"""bootstrap.servers in the forms of Java and librdkafka; a protocol that contradicts the properties."""

from __future__ import annotations

import pytest

from quota_metrics.kafka.bootstrap_servers import (
    BootstrapError,
    check_protocol,
    parse_bootstrap_servers,
)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:1", [("a", 1, "")]),
        (" a:1 , b:2,,\n", [("a", 1, ""), ("b", 2, "")]),
        ("SASL_SSL://host:9092,ssl://host:9093/ignored", [("host", 9092, "SASL_SSL"), ("host", 9093, "SSL")]),
        ("EXTERNAL://host:9092", [("host", 9092, "EXTERNAL")]),
        ("[::1]:9092,::1:9092,PLAINTEXT://[fe80::1%eth0]:1",
         [("::1", 9092, ""), ("::1", 9092, ""), ("fe80::1%eth0", 1, "PLAINTEXT")]),
        ("b-1.msk_x.example:09098,bücher.example:1", [("b-1.msk_x.example", 9098, ""), ("bücher.example", 1, "")]),
    ],
)  # fmt: skip
def test_servers(text: str, servers: list[tuple[str, int, str]]) -> None:
    assert parse_bootstrap_servers(text) == servers


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "host", "SSL://host", ":9092", "a:0", "a:65536", "a:+1", "a:1;b:2", "a:1 b:2", "::1", "[::1]",
     "g::1:9092", "://a:1", "user@a:1", "a:1/path", "a" * 64 + ".example:1", "a:\u0661"],
)  # fmt: skip
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(BootstrapError, match="is not HOST:PORT"):
        parse_bootstrap_servers(text)


def test_protocol_must_not_contradict_the_properties() -> None:
    servers = parse_bootstrap_servers("EXTERNAL://a:1,b:2,SASL_SSL://[::1]:3")
    check_protocol(servers, "SASL_SSL")
    with pytest.raises(BootstrapError, match=r"SASL_SSL://\[::1\]:3 contradicts security.protocol=PLAINTEXT"):
        check_protocol(servers, "PLAINTEXT")
