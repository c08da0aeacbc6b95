"""What follows from the facts of a cluster: releases, windows, remarks; what an unreachable broker keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from quota_metrics.cluster.document import document
from quota_metrics.cluster.facts import (
    METADATA_VERSION,
    PROTOCOL_VERSION,
    THREADS,
    AddressQuota,
    BrokerFacts,
    ClusterFacts,
    HostAcl,
    Unread,
    release_of,
)
from quota_metrics.windows import QuotaWindow

DEFAULTS = {
    "quota.window.num": "11",
    "quota.window.size.seconds": "1",
    "controller.quota.window.num": "11",
    "controller.quota.window.size.seconds": "1",
    "num.io.threads": "8",
    "num.network.threads": "3",
    "telemetry.max.bytes": "1048576",
    "max.connections": "2147483647",
    "max.connections.per.ip": "2147483647",
    "max.connections.per.ip.overrides": "",
    "principal.builder.class": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
}


def broker(broker_id: int = 1, configs: Mapping[str, str] = {}, release: tuple[int, int] = (4, 3)) -> BrokerFacts:
    return BrokerFacts(broker_id, release, {**DEFAULTS, **configs}, client_metrics=True)


def cluster(*brokers: BrokerFacts) -> ClusterFacts:
    return ClusterFacts("c", brokers, (4, 3), has_authorizer=False)


@pytest.mark.parametrize(
    ("supported", "configs", "release"),
    [
        ({METADATA_VERSION: 10}, {}, (3, 5)),
        ({METADATA_VERSION: 10_000}, {}, (4, 4)),
        ({METADATA_VERSION: 0}, {}, None),
        ({}, {PROTOCOL_VERSION: "2.8-IV1"}, (2, 8)),
        ({}, {PROTOCOL_VERSION: "3.5"}, (3, 5)),
        ({}, {PROTOCOL_VERSION: "x.y"}, None),
        ({}, {PROTOCOL_VERSION: "99999999.1"}, None),
        ({}, {}, None),
    ],
)
def test_release(supported: dict[str, int], configs: dict[str, str], release: tuple[int, int] | None) -> None:
    assert release_of(supported, configs) == release


def test_defaults_have_no_remarks() -> None:
    facts = cluster(broker())
    assert list(facts.remarks()) == []
    assert facts.window_at(1) == QuotaWindow()
    assert [facts.broker(1).number(name) for name in THREADS] == [8, 3]
    assert facts.telemetry_max_bytes == 1048576


def test_windows_are_those_of_each_broker_and_of_another_one_where_unknown() -> None:
    larger = broker(2, {"quota.window.num": "31"}, (3, 7))
    unread = BrokerFacts(3)
    facts = cluster(broker(1), larger, unread)
    assert facts.window_at(1) == QuotaWindow(11, 1000)
    assert facts.window_at(2) == QuotaWindow(31, 1000, before_3_8=True)
    assert facts.window_at(3) == facts.window_at(4) == QuotaWindow(11, 1000)
    assert cluster(unread).window_at(3) is None
    assert ["broker 2 measures over quota.window.num=31" in remark for remark in facts.remarks()] == [True]


@pytest.mark.parametrize("value", ["", "-1", "0", "x", "1e9", "9" * 30, "\N{SUPERSCRIPT TWO}"])
def test_invalid_window_is_unknown(value: str) -> None:
    assert broker(configs={"quota.window.num": value}).quota_window is None


@pytest.mark.parametrize(
    ("facts", "remark"),
    [
        (cluster(broker(configs={"client.quota.callback.class": "x.Y"})), "client.quota.callback.class is x.Y"),
        (cluster(broker(configs={"max.connections.per.ip": "15"})), "max.connections.per.ip is 15"),
        (cluster(broker(configs={"max.connections.per.ip.overrides": "a:1"})), "overrides is a:1"),
        (cluster(broker(configs={"principal.builder.class": "x.P"})), "principal.builder.class is x.P"),
        (
            cluster(broker(configs={"replica.alter.log.dirs.io.max.bytes.per.second": "5000"})),
            "broker 1 throttles replication: replica.alter.log.dirs.io.max.bytes.per.second is 5000",
        ),
        (cluster(replace(broker(release=(3, 5)), client_metrics=False)), "release 3.5 have no CLIENT_METRICS"),
        (replace(cluster(broker()), address_quotas=(AddressQuota(None, 2.0),)), "of the default address is 2 per"),
        (replace(cluster(broker()), host_acls=(HostAcl("DENY", "User:a", "h", "READ", "TOPIC t"),)), "1 ACLs name"),
    ],
)
def test_what_differs_is_remarked(facts: ClusterFacts, remark: str) -> None:
    (line,) = facts.remarks()
    assert remark in line


def test_throttles_of_many_topics_are_one_remark_and_stale_ones_another() -> None:
    topics = {f"t{n}": {"leader.replication.throttled.replicas": "*"} for n in range(5)}
    throttled, stale = replace(cluster(broker()), throttled_replicas=topics).remarks()
    assert throttled == "replicas of topics are throttled: t0, t1, t2 and 2 more"
    assert stale.startswith("5 replication throttles are of no use and slow down replicas that catch up (no broker has")
    assert "`headroom quotas stale`" in stale


def test_callback_of_some_brokers_is_remarked() -> None:
    facts = cluster(broker(1), broker(2, {"client.quota.callback.class": "x.Y"}))
    assert [*facts.remarks()][1] == "only some brokers have a client.quota.callback.class"


def test_unreachable_broker_keeps_what_was_known() -> None:
    earlier = cluster(broker(1, {"quota.window.num": "31"}), broker(2))
    fault = Unread("configuration of broker 1", "", "", "cannot reach")
    later = replace(cluster(BrokerFacts(1), broker(2, {"quota.window.num": "21"})), unread=(fault,))
    facts = later.completed_by(earlier)
    assert facts.window_at(1) == QuotaWindow(31, 1000)
    assert facts.window_at(2) == QuotaWindow(21, 1000)
    assert facts.has_client_metrics is True
    assert facts.unread == (fault,)


def test_document_has_none_for_what_was_not_read() -> None:
    described, unread = document(cluster(broker(), BrokerFacts(2)), ["more"])["brokers"]
    assert (described["quota_window_num"], described["callback_class"], described["principal_builder"]) == (11, "", "")
    assert {name for name, value in unread.items() if value is None} == {
        "quota_window_num", "quota_window_size_ms", "controller_quota_window_num", "controller_quota_window_size_ms",
        "callback_class", "telemetry_max_bytes", "io_threads", "network_threads", "principal_builder",
    }  # fmt: skip
