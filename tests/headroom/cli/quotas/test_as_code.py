"""`headroom quotas plan | export | drift` on files and a recording, and their exit statuses. No cluster."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headroom.cli.main import app
from headroom.cli.quotas.cluster_state import ClusterState, valid_subscriptions, writable_state
from telemetry.ingest.arrow_tables import limits_table, usage_table
from tests.kit.clickhouse import RunningClickHouse, running_clickhouse
from tests.kit.kafka.quota_files import quotas_of
from tests.kit.recordings import PRODUCER, START_MS, Used, limit, recorded

RULES = {
    "entries": [
        {"entity": {"user": "alice"}, "values": {PRODUCER: 5000}},
        {"entity": {"client-id": None}, "values": {"request_percentage": 50}},
    ]
}
STRICT = """
quotas:
  - entity: {user: alice}
    values: {producer_byte_rate: 1000}
    owner: payments
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(RULES))
    return str(path)


def written(tmp_path: Path, content: str) -> str:
    path = tmp_path / "quotas.yaml"
    path.write_text(content, "utf-8")
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quotas", *arguments])


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    """Five minutes of two clients of alice and one of bob: `big` sends 2000 bytes/s, the others 100."""
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        start_ms = (time.time_ns() // 60_000_000_000 - 12) * 60_000
        loads = [
            Used("alice", "big", [2000] * 300),
            Used("alice", "small", [100] * 300),
            Used("bob", "it", [100] * 300),
        ]
        rows = [row._replace(ts_ms=row.ts_ms - START_MS + start_ms) for row in recorded(*loads)]
        running.store.insert("quota_usage", usage_table(rows, start_ms), token="usage")
        known = [limit("alice", "", 5000.0)._replace(valid_from_ms=start_ms - 60_000)]
        running.store.insert("quota_limits", limits_table(known, start_ms), token="limits")
        yield running


@pytest.mark.clickhouse
def test_plan_names_those_that_a_bad_limit_throttles(tmp_path: Path, rules: str, recording: RunningClickHouse) -> None:
    asking = ["plan", "-f", written(tmp_path, STRICT), "--from", rules, "--since", "1h", "--url", recording.url]
    result = run(*asking, "--max-harm", "1", "--output", "json")
    assert result.exit_code == 4, result.output
    found = document(result)
    (change,) = found["changes"]
    assert (change["action"], change["before"], change["after"], change["owner"]) == ("change", 5000, 1000, "payments")
    assert sorted(map(tuple, change["first_clients"])) == [("alice", "big"), ("alice", "small")]
    assert {row["client_id"] for row in found["harmed"]} == {"big", "small"}  # they share the quota
    assert all(row["after"]["throttled_s"] > 60 for row in found["harmed"])
    assert (found["harmed_clients"], found["passes"]) == (2, False)
    assert run(*asking, "--max-harm", "2").exit_code == 0
    assert run(*asking).exit_code == 0
    unreadable = written(tmp_path, "quotas: [{user: bob, producer_byte_rate: 5}]")
    result = run("plan", "-f", unreadable, *asking[3:], "--max-harm", "2", "--output", "json")
    assert (result.exit_code, document(result)["passes"]) == (2, False)
    assert "not all could be read" in document(result)["summary"][1]


@pytest.mark.clickhouse
def test_plan_as_table_and_markdown(tmp_path: Path, rules: str, recording: RunningClickHouse) -> None:
    asking = ["plan", "-f", written(tmp_path, STRICT), "--from", rules, "--since", "1h", "--url", recording.url]
    for output in ("table", "markdown"):
        said = run(*asking, "--max-harm", "0", "--output", output).stdout
        assert "newly throttled" in said
        assert "2 clients would have been throttled for longer than recorded" in said
        assert "not in the file, and kept without --prune: 1 value" in said
        assert "more than --max-harm 0" in said
        assert "the replay covers" in said
    assert "| change | {user=alice} | producer\\_byte\\_rate | 5000 | 1000 |" in said


@pytest.mark.clickhouse
def test_plan_of_a_quota_without_recorded_usage_says_so(
    tmp_path: Path, rules: str, recording: RunningClickHouse
) -> None:
    file = written(tmp_path, "quotas: [{entity: {user: bob}, values: {request_percentage: 5}}]")
    result = run("plan", "-f", file, "--from", rules, "--since", "1h", "--url", recording.url, "--output", "json")
    found = document(result)
    assert (found["what_if"], found["not_replayed"]) == (None, ["request_percentage"])
    assert found["changes"][0]["first_clients"] == [["bob", "it"]]


def test_plan_without_a_replay_needs_no_store(tmp_path: Path, rules: str) -> None:
    file = written(tmp_path, STRICT)
    found = document(run("plan", "-f", file, "--from", rules, "--no-replay", "--prune", "--output", "json"))
    assert [(each["action"], each["clients"]) for each in found["changes"]] == [("change", None), ("remove", None)]
    assert run("plan", "-f", file, "--from", rules, "--no-replay", "--max-harm", "0").exit_code == 2


def test_export_and_drift_agree(tmp_path: Path, rules: str) -> None:
    exported = run("export", "--from", rules).stdout
    assert {quota.entity for quota in quotas_of(exported)} == {(("user", "alice"),), (("client-id", None),)}
    file = written(tmp_path, exported)
    assert run("drift", "-f", file, "--from", rules).exit_code == 0
    (tmp_path / "cluster.json").write_text(json.dumps({"entries": RULES["entries"][:1]}))
    result = run("drift", "-f", file, "--from", rules, "--output", "json")
    assert result.exit_code == 4
    (difference,) = json.loads(result.stdout)
    assert (difference["action"], difference["quota_key"], difference["after"]) == ("set", "request_percentage", 50)


def test_name_that_reads_as_the_default_is_left_out_and_left_alone(tmp_path: Path) -> None:
    rules = tmp_path / "cluster.json"
    odd = {"entity": {"user": "<default>"}, "values": {PRODUCER: 7}}
    rules.write_text(json.dumps({"entries": [odd, *RULES["entries"]]}))
    exported = run("export", "--from", str(rules))
    named = "headroom: left out: {user=%3Cdefault%3E}: in a file the name <default> is the default entity"
    assert (exported.exit_code, exported.stderr.splitlines()) == (0, [named])
    assert len(quotas_of(exported.stdout)) == 2
    file = written(tmp_path, exported.stdout)
    for command in (["drift"], ["plan", "--prune", "--no-replay"]):
        result = run(*command, "-f", file, "--from", str(rules), "--output", "json")
        assert (result.exit_code, document(result)["changes"] if command[0] == "plan" else []) == (0, [])
        assert result.stderr.splitlines() == [named]


def test_scram_users_are_named_as_ignored_and_the_quotas_are_taken(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    credentials = {"SCRAM-SHA-512": "iterations=4096"}
    entries = [{"entity": {"user": "bob"}, "values": credentials}, *RULES["entries"]]
    entries[1] = {"entity": {"user": "alice"}, "values": {PRODUCER: 1000, **credentials}}
    cluster.write_text(json.dumps({"entries": entries}))
    file = written(tmp_path, STRICT + "scram_users: [{user: bob, mechanism: SCRAM-SHA-512}]")
    planned = run("plan", "-f", file, "--from", str(cluster), "--no-replay", "--output", "json")
    assert (planned.exit_code, document(planned)["changes"]) == (0, [])
    because = "ignored, because SCRAM users and their passwords are for kafka-configs.sh to set"
    assert planned.stderr.splitlines() == [
        f"headroom: line 6: scram_users: {because}",
        f"headroom: SCRAM-SHA-512 of {{user=bob}}: {because}",
        f"headroom: SCRAM-SHA-512 of {{user=alice}}: {because}",
    ]


def test_export_into_the_file_keeps_owner_comment_and_expiry(tmp_path: Path, rules: str) -> None:
    file = written(tmp_path, STRICT + "    comment: why\n    expires: 2999-01-31\n")
    assert run("export", "-f", file, "--from", rules).exit_code == 0
    quotas = {quota.entity: quota for quota in quotas_of(Path(file).read_text())}
    alice, others = quotas[("user", "alice"),], quotas[("client-id", None),]
    assert (alice.owner, alice.comment, str(alice.expires)) == ("payments", "why", "2999-01-31")
    assert (alice.values, others.owner, others.expires) == ({PRODUCER: 5000.0}, "", None)


ODD = (
    STRICT
    + """\
  - entity: {user: bob}
    values: {x: 1}
  - entity: {user: 12}
    values: {producer_byte_rate: 1}
"""
)


def test_odd_entries_of_the_file_are_named_and_the_rest_is_compared(tmp_path: Path, rules: str) -> None:
    file = written(tmp_path, ODD)
    for command in (["plan", "--prune", "--no-replay"], ["drift"]):
        result = run(*command, "-f", file, "--from", rules, "--output", "json")
        assert result.exit_code == 2
        assert [line.partition(", only ")[0] for line in result.stderr.splitlines()] == [
            "headroom: left out: line 7: `values` has no field 'x'",
            "headroom: left out: line 8: user is not text: quote it, or write <default>",
        ]
        changes = document(result)["changes"] if command[0] == "plan" else json.loads(result.stdout)
        # What half a file does not name is not said to go.
        assert [(each["entity"], each["quota_key"], each["after"]) for each in changes] == [
            ({"user": "alice"}, PRODUCER, 1000.0)
        ]


def test_an_odd_subscription_of_file_or_cluster_is_named_and_leaves_the_others_valid() -> None:
    held, left_out = writable_state(ClusterState({}, {"good": {"interval.ms": "1000"}, "odd": {"interval.ms": "5"}}))
    assert held.subscriptions == {"good": {"interval.ms": "1000"}}
    assert [line.partition(" for ")[0] for line in left_out] == ["subscriptions: odd: Invalid value 5"]
    valid, errors = valid_subscriptions({"good": {"interval.ms": "1000"}, "odd": {"interval.ms": "5"}, "none": 1})
    assert valid == {"good": {"interval.ms": "1000"}}
    assert [error.partition(": ")[2].partition(":")[0] for error in errors] == ["odd", "none"]
    assert valid_subscriptions(["good"]) == ({}, ["subscriptions: not a mapping of subscriptions"])


def test_nothing_is_changed_by_half_a_file(tmp_path: Path, rules: str) -> None:
    file = written(tmp_path, ODD)
    for command in (["apply", "--yes", "--bootstrap-server", "127.0.0.1:1"], ["export", "--from", rules]):
        result = run(*command, "-f", file)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("headroom: line 7: `values` has no field 'x', only producer_byte_rate, ")
    assert Path(file).read_text() == ODD
    assert run("apply", "-f", str(tmp_path / "none.yaml"), "--bootstrap-server", "h:1").exit_code == 2
    for content in ("", "a: [", "quotas: [", "kafka: {quotas: []}"):
        result = run("drift", "-f", written(tmp_path, content), "--from", rules)
        assert (result.exit_code, result.stdout) == (2, "")


def test_odd_entries_of_kafkas_json_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    odd = '{"entity": {"user": "bob"}, "values": {"producer_byte_rate": 0, "request_percentage": 5}}'
    entries = ",\n".join(json.dumps(entry) for entry in RULES["entries"])
    cluster = tmp_path / "cluster.json"
    cluster.write_text(f'{{"version": [{{}}], "entries": [\n{entries},\n{odd},\n7,\n{entries.splitlines()[0][:-1]}]}}')
    named = [
        "headroom: left out: line 4: entries[2]: producer_byte_rate is 0, not a number greater than 0",
        'headroom: left out: line 5: entries[3]: not an object with "entity" and "values" alone',
        "headroom: left out: line 6: entries[4]: producer_byte_rate of {user=alice} a second time",
    ]
    described = run("describe", "--from", str(cluster), "--output", "json")
    assert (described.exit_code, described.stderr.splitlines()) == (2, named)
    read = {tuple(entry["entity"].values()): entry["values"] for entry in document(described)["entries"]}
    assert read == {
        ("alice",): {PRODUCER: 5000},
        (None,): {"request_percentage": 50},
        ("bob",): {"request_percentage": 5},
    }
    resolved = run("resolve", "--from", str(cluster), "--user", "alice", "--client-id", "x")
    assert (resolved.exit_code, "producer_byte_rate=5000" in resolved.stdout) == (2, True)
    altered = run("alter", "--from", str(cluster), "--user", "alice", "--add", f"{PRODUCER}=1")
    assert (altered.exit_code, altered.stdout, altered.stderr.splitlines()) == (2, "", named)
    planned = run("plan", "-f", written(tmp_path, STRICT), "--from", str(cluster), "--no-replay", "--output", "json")
    assert (planned.exit_code, len(document(planned)["changes"])) == (2, 1)
