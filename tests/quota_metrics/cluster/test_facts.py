"""What follows from the facts of a cluster: releases, windows, remarks, and which throttles are of no use."""

import shlex
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota_metrics.cluster.document import document, throttles_document
from quota_metrics.cluster.facts import (
    METADATA_VERSION,
    PROTOCOL_VERSION,
    REASSIGNMENTS,
    THREADS,
    THROTTLED_REPLICAS,
    AddressQuota,
    BrokerFacts,
    ClusterFacts,
    HostAcl,
    Unread,
    release_of,
)
from quota_metrics.cluster.replication import (
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    LOG_DIRS_RATE,
    SetRate,
    removal_commands,
    replication_throttles,
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


STATIC = 4
IDLE = "no reassignment is running"
BOTH_RATES = {LEADER_RATE: "1000", FOLLOWER_RATE: "1000"}
BOTH_REPLICAS = {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}


def throttled(
    rates: Mapping[str, str],
    replicas: Mapping[str, str],
    reassigning: int | None,
    *,
    source: int = DYNAMIC_BROKER,
    moves: bool | None = None,
) -> ClusterFacts:
    broker = BrokerFacts(1, (4, 3), rates, sources=dict.fromkeys(rates, source), moves_log_dirs=moves)
    topics = {"orders": replicas} if replicas else {}
    return ClusterFacts("c", (broker,), throttled_replicas=topics, reassigning=reassigning)


def stale(facts: ClusterFacts) -> dict[str, tuple[str, ...]]:
    return {throttle.config: throttle.stale for throttle in facts.replication_throttles if throttle.stale}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (throttled(BOTH_RATES, BOTH_REPLICAS, 7), {}),
        (throttled(BOTH_RATES, BOTH_REPLICAS, None), {}),
        (throttled(BOTH_RATES, BOTH_REPLICAS, 0), dict.fromkeys((*BOTH_RATES, *BOTH_REPLICAS), (IDLE,))),
        (
            throttled({LEADER_RATE: "1000"}, BOTH_REPLICAS, 7),
            dict.fromkeys((LEADER_RATE, FOLLOWER_REPLICAS), (f"no broker has {FOLLOWER_RATE}",)),
        ),
        (
            throttled(BOTH_RATES, {FOLLOWER_REPLICAS: "*"}, 7),
            {
                LEADER_RATE: (f"no topic has {LEADER_REPLICAS}",),
                FOLLOWER_REPLICAS: (f"the topic has no {LEADER_REPLICAS}",),
            },
        ),
        (
            throttled(BOTH_RATES, {}, 0, source=DYNAMIC_DEFAULT),
            {
                FOLLOWER_RATE: (IDLE, f"no topic has {FOLLOWER_REPLICAS}"),
                LEADER_RATE: (IDLE, f"no topic has {LEADER_REPLICAS}"),
            },
        ),
        (throttled(BOTH_RATES, {}, 0, source=STATIC), {}),
        (throttled({LOG_DIRS_RATE: "1000"}, {}, 0, moves=True), {}),
        (throttled({LOG_DIRS_RATE: "1000"}, {}, 0), {}),
        (
            throttled({LOG_DIRS_RATE: "1000"}, {}, 7, moves=False),
            {LOG_DIRS_RATE: ("no replica moves between log directories",)},
        ),
        (throttled({LEADER_RATE: str(2**63 - 1)}, {}, 0), {}),
    ],
)
def test_stale_throttles(facts: ClusterFacts, expected: dict[str, tuple[str, ...]]) -> None:
    assert stale(facts) == expected


def test_what_cannot_be_read_makes_nothing_stale() -> None:
    unread = (Unread(THROTTLED_REPLICAS, "", ""), Unread(REASSIGNMENTS, "", ""), Unread("ACLs", "", ""))
    facts = replace(throttled(BOTH_RATES, {}, None), unread=unread)
    assert stale(facts) == {}
    assert [fact["what"] for fact in throttles_document(facts)["unread"]] == [THROTTLED_REPLICAS, REASSIGNMENTS]


def test_default_of_all_brokers_is_of_use_when_it_is_at_one() -> None:
    rates = [SetRate(n, LOG_DIRS_RATE, "1000", DYNAMIC_DEFAULT, moves) for n, moves in enumerate((False, True, False))]
    (throttle,) = replication_throttles(rates, {}, 0)
    assert (throttle.where, throttle.stale) == ("all brokers", ())


@given(st.text(min_size=1), st.dictionaries(st.sampled_from(sorted(BOTH_REPLICAS)), st.text(min_size=1), min_size=1))
def test_commands_are_quoted(topic: str, replicas: dict[str, str]) -> None:
    (command,) = removal_commands(replication_throttles([], {topic: replicas}, 0))
    words = shlex.split(command)
    assert words[words.index("--entity-name") + 1] == topic
    assert set(words[-1].split(",")) == set(replicas)
