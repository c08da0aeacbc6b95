"""No security property of Java or librdkafka is without effect in silence."""

import ctypes
from collections.abc import Iterable
from pathlib import Path

import confluent_kafka
import pytest

from headroom.demo.jvm import Jvm
from quota_metrics.kafka.properties import OURS, misspelled, without_effect


def test_librdkafkas_security_properties_are_honoured_or_refused_by_name() -> None:
    (library,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    librdkafka = ctypes.CDLL(str(library))  # that confluent-kafka brings along
    librdkafka.rd_kafka_conf_new.restype = ctypes.c_void_p
    librdkafka.rd_kafka_conf_dump.restype = ctypes.POINTER(ctypes.c_char_p)
    librdkafka.rd_kafka_conf_dump.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t))
    count = ctypes.c_size_t()
    entries = librdkafka.rd_kafka_conf_dump(librdkafka.rd_kafka_conf_new(), ctypes.byref(count))
    with_default = [entries[number].decode() for number in range(0, count.value, 2)]
    without_default = ("oauthbearer.client.id", "oauthbearer.client.secret", "oauthbearer.extensions", "password")
    names = [name for name in with_default if "." in name] + [f"sasl.{name}" for name in without_default]
    assert len(names) > 50
    assert misspelled(dict.fromkeys(names, "x")) == []
    check_each(names)


@pytest.mark.java
def test_kafkas_properties_are_known_and_those_of_security_honoured_or_refused_by_name(jvm: Jvm) -> None:
    clients = jvm.classes.org.apache.kafka.clients
    configs = (clients.consumer.ConsumerConfig, clients.producer.ProducerConfig, clients.admin.AdminClientConfig)
    names = {str(name) for config in configs for name in config.configNames()}
    assert len(names) > 100
    assert misspelled(dict.fromkeys(names, "")) == []
    check_each(names)


def check_each(names: Iterable[str]) -> None:
    for name in names:
        faults = without_effect({name: "something"})
        others = ("enable.sasl.oauthbearer.unsecure.jwt", "config.providers", "security.providers")
        is_harmless = name.startswith("sasl.kerberos.") or name.endswith((".ms", ".seconds", ".factor", ".jitter"))
        if name in OURS or is_harmless or not name.startswith(("sasl.", "ssl.", *others)):
            assert faults == []
        else:
            (fault,) = faults
            assert fault.startswith(name)


def test_what_happens_anyway_may_be_written() -> None:
    oauth = "org.apache.kafka.common.security.oauthbearer"
    entries = {
        "sasl.login.callback.handler.class": f"{oauth}.secured.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.method": "OIDC",
        "ssl.cipher.suites": "",
        "sasl.login.connect.timeout.ms": "15000",
        "sasl.kerberos.service.name": "kafka",
        "client.dns.lookup": "use_all_dns_ips",
        "schema.registry.url": "https://example",
        "basic.auth.credentials.source": "USER_INFO",
    }
    assert (misspelled(entries), without_effect(entries)) == ([], [])
    aws = {"sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"}
    (fault,) = without_effect(aws)
    assert "IAMOAuthBearerLoginCallbackHandler has no effect here: remove it, or set org.apache" in fault
