"""KIP-546's entities, filters and spellings."""

from __future__ import annotations

import math
import random
import shlex
from ipaddress import ip_address
from pathlib import Path

import pytest

from headroom.demo.jvm import Jvm
from quota_metrics.config.entities import (
    Entity,
    desanitize,
    entity_of,
    kafka_configs_line,
    literal_address,
    sanitize,
    stored_rules,
    text,
)

ALICE = entity_of({"user": "alice"})


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("user with spaces", "user%20with%20spaces"),
        ("CN=app,OU=x,O=y", "CN%3Dapp%2COU%3Dx%2CO%3Dy"),
        ("a+b", "a%2Bb"),
        ("user@REALM", "user%40REALM"),
        ("x.y-z_~", "x.y-z_%7E"),
        ("%41", "%2541"),
        ("a*", "a%2A"),
        ("ü", "%C3%BC"),
    ],
)
def test_names_are_sanitized_as_in_kafka(name: str, sanitized: str) -> None:
    assert sanitize(name) == sanitized
    assert desanitize(sanitized) == name


def test_text_uses_the_notation_of_kip_546() -> None:
    assert text(entity_of({"user": "a b", "client-id": None})) == "{user=a%20b, client-id=<default>}"


SPELLINGS = ["10.1", "010.0.0.1", "167772161", "1.2.65535", "1.2.3.256", "256.1", "4294967296", "1.2.3.", "1..2", "-1"]
SPELLINGS += [
    "::1",
    "[::1]",
    "::ffff:1.2.3.4",
    "::1.2.3.4",
    "1:2:3:4:5:6:7::",
    "fe80::1%1",
    "1.2.3.4.5",
    "+1.2.3.4",
    " 1.1",
]
SPELLINGS += ["0000000000000001", "000000000000001", "0x7f.1", "\u0663.1.1.1"]


@pytest.mark.java
def test_literal_addresses_are_read_as_java_reads_them(java: str, kafka_libs: Path) -> None:
    rng = random.Random(33)
    numbers = ["0", "1", "09", "255", "256", "65535", "65536", "16777216", "4294967295", "4294967296"]
    drawn = [".".join(rng.choices(numbers, k=rng.randint(1, 5))) for _ in range(300)]
    with Jvm(java, kafka_libs, ["-Xmx64m", "--add-exports=java.base/sun.net.util=ALL-UNNAMED"]) as jvm:
        read = jvm.classes.sun.net.util.IPAddressUtil  # what InetAddress.getByName asks first
        for name in SPELLINGS + drawn:
            four = read.textToNumericFormatV4(name)
            numeric = four if four is not None else read.textToNumericFormatV6(name.strip("[]"))
            theirs = None if numeric is None else str(ip_address(bytes(numeric)))
            assert literal_address(name) == theirs, name


def test_limit_below_zero_allows_nothing() -> None:
    rules = stored_rules(
        {ALICE: {"producer_byte_rate": -1.0, "request_percentage": 0.0, "consumer_byte_rate": math.inf}}
    )
    assert rules == {ALICE: {"producer_byte_rate": 0.0, "request_percentage": 0.0, "consumer_byte_rate": math.inf}}


@pytest.mark.parametrize(
    ("entity", "value", "words"),
    [
        ((("user", "alice"),), 5000.0, ["--entity-type", "users", "--entity-name", "alice", "--add-config", "k=5000"]),
        ((("user", None),), 12.5, ["--entity-type", "users", "--entity-default", "--add-config", "k=12.5"]),
        ((("client-id", None),), None, ["--entity-type", "clients", "--entity-default", "--delete-config", "k"]),
        (
            (("user", "a'; rm -rf / #"), ("client-id", "$(id) `id`")),
            1e15,
            ["--entity-type", "users", "--entity-name", "a'; rm -rf / #", "--entity-type", "clients", "--entity-name",
             "$(id) `id`", "--add-config", "k=1000000000000000"],
        ),
    ],
)  # fmt: skip
def test_kafka_configs_line_is_quoted_for_the_shell(entity: Entity, value: float | None, words: list[str]) -> None:
    line = kafka_configs_line(entity, "k", value)
    assert shlex.split(line) == ["kafka-configs.sh", "--bootstrap-server", "HOST:PORT", "--alter", *words]
