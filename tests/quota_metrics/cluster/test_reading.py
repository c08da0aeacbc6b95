"""The facts of real brokers: configured ones, and those that refuse a user without rights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headroom.cli.cluster import asked
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from quota_metrics.cluster.facts import AddressQuota, HostAcl
from quota_metrics.cluster.reading import read_facts
from quota_metrics.windows import QuotaWindow
from tests.kit.quota_callback import CLASS, LIMIT_CONFIG, libs_with_callback
from tests.quota_metrics.conftest import SecureBroker

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def configured(java: str, kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    properties = {
        "quota.window.num": "31",
        "client.quota.callback.class": CLASS,
        LIMIT_CONFIG: "100000",
        "max.connections.per.ip": "1500",
        "listener.name.plaintext.max.connections": "1400",
        "telemetry.max.bytes": "500000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    libs = libs_with_callback(java, kafka_libs, tmp_path_factory.mktemp("callback"))
    with LocalCluster(java, libs, nodes=2, properties=properties) as running:
        yield running


@pytest.mark.java
def test_configured_cluster(configured: LocalCluster, jvm: Jvm) -> None:
    common = jvm.classes.org.apache.kafka.common
    pattern = common.resource.ResourcePattern(
        common.resource.ResourceType.TOPIC, "orders", common.resource.PatternType.PREFIXED
    )
    rules = [
        common.acl.AccessControlEntry(
            "User:alice", host, common.acl.AclOperation.READ, common.acl.AclPermissionType.DENY
        )
        for host in ("*", "192.0.2.7")
    ]
    java_admin = jvm.admin(configured.bootstrap)
    java_admin.createAcls([common.acl.AclBinding(pattern, rule) for rule in rules]).all().get()
    java_admin.close()
    with Admin(jvm, configured.bootstrap) as admin:
        admin.alter_quota({"ip": None}, {"connection_creation_rate": 200.0})
        admin.create_topics(["t"], leader_replication_throttled_replicas="*")
    facts = asked(read_facts, configured.bootstrap, None, 60_000)
    assert facts.unread == ()
    assert [broker.broker_id for broker in facts.brokers] == [1, 2]
    for broker in facts.brokers:
        assert broker.release == (4, 3)
        assert broker.quota_window == QuotaWindow(31, 1000)
        assert broker.mutation_window == QuotaWindow()
        assert broker.callback_class == CLASS
        assert broker.telemetry_max_bytes == 500_000
        assert broker.limits() == {
            "max.connections.per.ip": "1500",
            "listener.name.plaintext.max.connections": "1400",
        }
    assert facts.metadata_version == (4, 3)
    assert facts.has_client_metrics is True
    assert facts.address_quotas == (AddressQuota(None, 200.0),)
    assert facts.has_authorizer is True
    assert facts.host_acls == (HostAcl("DENY", "User:alice", "192.0.2.7", "READ", "TOPIC orders*"),)
    assert facts.throttled_replicas == {"t": {"leader.replication.throttled.replicas": "*"}}
    assert (facts.reassigning, facts.partitions) == (0, {"t": 1})


def test_missing_rights_are_facts_too(secure_kafka: SecureBroker) -> None:
    cluster, protocol = secure_kafka.cluster, "SASL_PLAINTEXT"
    facts = asked(read_facts, cluster.bootstrap(protocol), cluster.command_config(protocol, "alice"), 60_000)
    assert {unread.what for unread in facts.unread} == {
        "configuration of broker 1",
        "connection_creation_rate of addresses",
        "ACLs with hosts",
        "reassignments of partitions",
    }
    assert all("AUTHORIZATION_FAILED" in unread.error and unread.needs and unread.means for unread in facts.unread)
    assert facts.broker(1).release == (4, 3)
    assert facts.broker(1).quota_window is None
