"""What we read and compute compared with Java's and Kafka's own classes; `make oracle` draws more cases."""

import random
from ipaddress import ip_address
from pathlib import Path

import pytest

from headroom.demo.jvm import Jvm
from quota_metrics.cluster.facts import release_of_level
from quota_metrics.config.entities import literal_address
from quota_metrics.kafka.authentication import salted_password
from tests.oracle import client_files_oracle, quotas_oracle

pytestmark = pytest.mark.java


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(subject, marks=pytest.mark.release if subject in ("mutations", "connections") else ())
        for subject in quotas_oracle.SUBJECTS
    ],
)
def test_quota_rules_match_kafkas_classes(jvm: Jvm, subject: str) -> None:
    assert quotas_oracle.SUBJECTS[subject](jvm, 20_261_121, 150) == []


@pytest.mark.parametrize("subject", list(client_files_oracle.SUBJECTS))
def test_texts_are_read_as_by_javas_classes(jvm: Jvm, subject: str) -> None:
    assert client_files_oracle.SUBJECTS[subject](jvm, 20_261_126, 400) == []


def test_releases_are_those_of_kafkas_levels(jvm: Jvm) -> None:
    for version in jvm.classes.org.apache.kafka.server.common.MetadataVersion.values():
        release = tuple(int(part) for part in version.shortVersion().split("."))
        assert release_of_level(version.featureLevel()) == release, version.toString()


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


def test_a_password_is_salted_as_kafka_does(jvm: Jvm) -> None:
    scram = jvm.classes.org.apache.kafka.common.security.scram.internals
    formatter = scram.ScramFormatter(scram.ScramMechanism.SCRAM_SHA_512)
    salted = bytes(formatter.saltedPassword("secret-é", b"salt", 8192))
    assert salted == salted_password("sha512", "secret-é", b"salt", 8192)
