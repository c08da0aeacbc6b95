"""sasl.jaas.config as people write it: Confluent's and Strimzi's forms, and what Kafka refuses."""

from __future__ import annotations

import pytest

from quota_metrics.kafka.jaas import JaasError, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("username='K' password='s3cr;t with=chars'", {"username": "K", "password": "s3cr;t with=chars"}),
        ('username="$ConnectionString" /* Event Hubs */ password="Endpoint=sb://n/;Key=a+b/c="',
         {"username": "$ConnectionString", "password": "Endpoint=sb://n/;Key=a+b/c="}),
        ("ssl.truststore.location='/x' extension_logicalCluster=lkc-1",
         {"ssl.truststore.location": "/x", "extension_logicalCluster": "lkc-1"}),
    ],
)  # fmt: skip
def test_options_of_the_login_module(options: str, expected: dict[str, str]) -> None:
    assert parse_jaas(f"{PLAIN} required {options};") == (PLAIN, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{PLAIN} required username='a'", "does not end with a semicolon"),
        (f"{PLAIN} username='a';", "no control flag"),
        (f"{PLAIN} required username='a' password=12345;", "password has no value"),
        (f"{PLAIN} required username='a' password=/etc/x;", "password has no value"),
        (f"{PLAIN} required username;", "username has no value"),
        (f"{PLAIN} required; {PLAIN} required;", "it has 2 login modules"),
        ("", "it has 0 login modules"),
        ("; required;", "no name of a login module"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "Kafka does not allow"),
    ],
)
def test_what_kafka_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(JaasError, match=message) as refused:
        parse_jaas(text)
    assert "12345" not in str(refused.value)
