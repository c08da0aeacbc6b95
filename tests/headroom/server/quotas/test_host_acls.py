"""An ACL that denies an address, before which the gateway stands: what the gateway hides is said."""

import socket
from html import unescape
from pathlib import Path

import pytest
from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from quota_metrics.kafka.frames import decoded, encoded
from tests.kit.clickhouse import RunningClickHouse
from tests.kit.serving import Served, output_of, page

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.clickhouse, pytest.mark.release]

PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
DENIED, GUARDED = "127.0.0.9", "guarded"
TOPIC_AUTHORIZATION_FAILED = 29


def topic_error(address: str, source: str) -> int:
    """The error code of the guarded topic in the Metadata that a client at `source` gets."""
    asked = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(GUARDED)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    host, _, port = address.rpartition(":")
    frame = encoded(asked, 1, "guarded")
    with socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0)) as connection:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        with connection.makefile("rb") as answers:
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
    (topic,) = decoded(asked, answer).topics
    return int(topic.error_code)


def test_acl_of_an_address_that_the_gateway_hides_is_said(
    java: str, kafka_libs: Path, jvm: Jvm, clickhouse: RunningClickHouse, tmp_path: Path
) -> None:
    with LocalCluster(java, kafka_libs, properties=PROPERTIES) as kafka:
        with Admin(jvm, kafka.bootstrap) as admin:
            admin.create_topics([GUARDED])
        common, java_admin = jvm.classes.org.apache.kafka.common, jvm.admin(kafka.bootstrap)
        literal = common.resource.PatternType.LITERAL
        topic = common.resource.ResourcePattern(common.resource.ResourceType.TOPIC, GUARDED, literal)
        types = common.acl.AclPermissionType
        for host, permission in (("*", types.ALLOW), (DENIED, types.DENY)):
            entry = common.acl.AccessControlEntry("User:*", host, common.acl.AclOperation.ALL, permission)
            java_admin.createAcls([common.acl.AclBinding(topic, entry)]).all().get()
        java_admin.close()
        arguments = ["--upstream", kafka.bootstrap, "--cluster", "host-acls"]
        with Served(tmp_path, *arguments, environment=clickhouse.environment) as served:
            assert topic_error(kafka.bootstrap, DENIED) == TOPIC_AUTHORIZATION_FAILED
            assert topic_error(served.kafka, DENIED) == 0  # the broker sees the gateway's address; Headroom says so:
            rule = f"DENY User:* from {DENIED} ALL TOPIC {GUARDED}"
            checked = output_of("gateway", "check", "--upstream", kafka.bootstrap)
            assert f"note an ACL names the address of a client: {rule}" in checked
            assert f"ACL: {rule}" in output_of("cluster", "show", "--http", served.http)
            remark = "1 ACLs name addresses of clients: brokers compare them with the gateway's"
            assert remark in unescape(page(served.http, "/status"))
            assert served.log.read_text().count(remark) == 1
