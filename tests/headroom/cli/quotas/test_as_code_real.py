"""`headroom quotas plan | apply | export | drift` on a real broker, beside Kafka's own ConfigCommand."""

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from headroom.cli.main import app
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Admin, Jvm
from quota_metrics.config.entities import entity_of
from quota_metrics.config.quota_file import DeclaredQuota, quota_file
from tests.kit.kafka.quota_files import kafka_configs, quotas_of
from tests.kit.serving import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.java]

OURS = "as-code-"


@pytest.fixture
def base(kafka: LocalCluster, tmp_path: Path) -> Iterator[list[DeclaredQuota]]:
    """What the shared broker has from other tests; it has just that again at the end."""
    path = tmp_path / "base.yaml"
    path.write_text(run(kafka, "export").stdout)
    quotas = quotas_of(path.read_text())
    yield quotas
    assert run(kafka, "apply", "-f", str(path), "--prune", "--yes").exit_code == 0
    assert run(kafka, "drift", "-f", str(path)).exit_code == 0


def run(kafka: LocalCluster, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["quotas", *arguments, "--bootstrap-server", kafka.bootstrap])


def written(path: Path, *quotas: DeclaredQuota) -> str:
    path.write_text(quota_file(quotas))
    return str(path)


def quota(name: str, value: float | None, key: str = "producer_byte_rate") -> DeclaredQuota:
    return DeclaredQuota(entity_of({"user": OURS + name, "client-id": None}), {key: value}, "team")


def test_drift_finds_a_change_of_kafkas_tool(
    kafka: LocalCluster, java: str, kafka_libs: Path, base: list[DeclaredQuota], tmp_path: Path
) -> None:
    file = written(tmp_path / "quotas.yaml", *base, quota("drift", 1e12))
    assert run(kafka, "apply", "-f", file, "--yes", "--undo", str(tmp_path / "undo.yaml")).stdout == ""
    assert run(kafka, "drift", "-f", file).exit_code == 0
    who = ["--entity-type", "users", "--entity-name", f"{OURS}drift", "--entity-type", "clients", "--entity-default"]
    alter = partial(kafka_configs, kafka, java, kafka_libs, "--alter", *who, "--add-config")
    alter("producer_byte_rate=2000000000000")
    found = drifted(kafka, file)
    assert [(each["quota_key"], each["before"], each["after"]) for each in found] == [
        ("producer_byte_rate", 2e12, 1e12)
    ]
    alter("producer_byte_rate=1000000000000,request_percentage=9")
    assert [each["why"] for each in drifted(kafka, file)] == ["not in the file"]


def drifted(kafka: LocalCluster, file: str) -> list[dict[str, object]]:
    """Once the broker has followed its controller."""
    asked = partial(run, kafka, "drift", "-f", file, "--output", "json")
    found: list[dict[str, object]] = json.loads(eventually(asked, lambda result: result.exit_code == 4).stdout)
    return found


def test_apply_stops_when_the_cluster_changed_underneath(
    kafka: LocalCluster, base: list[DeclaredQuota], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "quotas.yaml", *base, quota("under", 1e12))
    other = written(tmp_path / "other.yaml", *base, quota("other", 1e12))
    planned = json.loads(run(kafka, "plan", "-f", file, "--no-replay", "--output", "json").stdout)

    def confirm(*_: object, **__: object) -> None:
        """Another operator is faster."""
        assert run(kafka, "apply", "-f", other, "--yes").exit_code == 0

    monkeypatch.setattr(typer, "confirm", confirm)
    stopped = run(kafka, "apply", "-f", file)
    assert (stopped.exit_code, "nothing was applied, plan again" in stopped.stderr) == (1, True), stopped.output
    expected = run(kafka, "apply", "-f", file, "--yes", "--expect", planned["base"])
    assert expected.exit_code == 1
    assert f"{planned['base']})" in expected.stderr.partition("not those that the plan saw (")[2]
    assert run(kafka, "drift", "-f", other).exit_code == 0


def test_refused_values_are_found_before_the_first_change(
    kafka: LocalCluster, base: list[DeclaredQuota], tmp_path: Path
) -> None:
    """The address cannot be resolved, which only the broker knows."""
    address = DeclaredQuota(entity_of({"ip": "no address"}), {"connection_creation_rate": 5.0})
    file = written(tmp_path / "quotas.yaml", quota("first", 1e12), address)
    result = run(kafka, "apply", "-f", file, "--yes")
    assert result.exit_code == 1
    assert "nothing was applied; refused: {ip=no%20address}: no address is not a valid IP" in result.stderr
    assert run(kafka, "drift", "-f", written(tmp_path / "base2.yaml", *base)).exit_code == 0


SUBSCRIPTIONS = """
subscriptions:
  as-code: {metrics: [org.apache.kafka.], interval.ms: 60000, match: {client_id: "none-.*"}}
scram_users:
  - {user: as-code, mechanism: SCRAM-SHA-512, iterations: 8192, password_env: AS_CODE_PASSWORD}
"""


def test_subscriptions_are_applied_once_and_undone_and_scram_users_are_left_alone(
    kafka: LocalCluster, base: list[DeclaredQuota], tmp_path: Path
) -> None:
    path, undo = tmp_path / "sections.yaml", tmp_path / "undo.yaml"
    path.write_text(SUBSCRIPTIONS)
    file = str(path)
    planned = json.loads(run(kafka, "plan", "-f", file, "--no-replay", "--output", "json").stdout)
    found = {(each["section"], each["name"], each["key"], each["after"]) for each in planned["resource_changes"]}
    assert ("subscriptions", "as-code", "interval.ms", "60000") in found
    assert (len(found), planned["changes"], planned["unmanaged"]) == (3, [], [])
    assert list(planned["resource_changes"][0]) == ["action", "section", "name", "key", "before", "after", "why"]
    applied = run(kafka, "apply", "-f", file, "--yes", "--expect", planned["base"])
    assert (applied.exit_code, "3 values changed" in applied.stderr) == (0, True), applied.output
    assert "scram_users: ignored" in applied.stderr
    undo.write_text(applied.stdout)
    assert "quotas:" not in undo.read_text()  # with --prune an empty section would remove all
    assert run(kafka, "apply", "-f", file, "--yes").stderr.splitlines()[-1] == "nothing to change"
    exported = run(kafka, "export").stdout
    assert "as-code:" in exported and "scram" not in exported
    assert run(kafka, "apply", "-f", str(undo), "--yes").exit_code == 0
    assert run(kafka, "drift", "-f", file).exit_code == 4


LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
THROTTLES = {
    ("BROKER", "1"): {"leader.replication.throttled.rate": "5000000", LOG_DIRS_RATE: "7000000"},
    ("BROKER", ""): {"follower.replication.throttled.rate": "6000000"},
}


@pytest.mark.release
def test_throttles_that_a_reassignment_left_are_found_and_removed_by_the_printed_commands(
    kafka: LocalCluster, java: str, kafka_libs: Path, kafka_admin: Admin, jvm: Jvm
) -> None:
    kafka_admin.create_topics(["left.over"], follower_replication_throttled_replicas="0:1")
    classes = jvm.classes.org.apache.kafka
    operation, resource = classes.clients.admin.AlterConfigOp, classes.common.config.ConfigResource
    changes = {
        resource(getattr(resource.Type, kind), name): [
            operation(classes.clients.admin.ConfigEntry(key, value), operation.OpType.SET)
            for key, value in values.items()
        ]
        for (kind, name), values in THROTTLES.items()
    }
    admin = jvm.admin(kafka.bootstrap)
    admin.incrementalAlterConfigs(changes).all().get()
    admin.close()

    def stale() -> dict[str, Any]:
        return json.loads(run(kafka, "stale", "--output", "json").stdout)  # type: ignore[no-any-return]

    found = eventually(stale, lambda report: len(report["throttles"]) == 4)
    assert (found["reassigning"], found["unread"]) == (0, [])
    assert {(one["resource"], one["name"], one["config"]): one["stale"] for one in found["throttles"]} == {
        ("brokers", "1", "leader.replication.throttled.rate"): [
            "no reassignment is running",
            "no topic has leader.replication.throttled.replicas",
        ],
        ("brokers", "1", LOG_DIRS_RATE): ["no replica moves between log directories"],
        ("brokers", "", "follower.replication.throttled.rate"): ["no reassignment is running"],
        ("topics", "left.over", "follower.replication.throttled.replicas"): [
            "no reassignment is running",
            "the topic has no leader.replication.throttled.replicas",
        ],
    }
    table = run(kafka, "stale")
    assert table.exit_code == 4
    assert set(found["commands"]) <= set(table.stdout.splitlines())
    for command in found["commands"]:
        _, _, _, _, *arguments = shlex.split(command)  # the script, how to reach the cluster, --alter
        kafka_configs(kafka, java, kafka_libs, "--alter", *arguments)
    eventually(stale, lambda report: report["throttles"] == [])
    none = run(kafka, "stale")
    assert (none.exit_code, none.stdout.splitlines()[-1]) == (0, "nothing throttles replication")
