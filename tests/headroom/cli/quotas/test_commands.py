"""`headroom quotas` on files, and its messages for invalid input. No cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headroom.cli.main import app as headroom
from headroom.cli.output.quotas import Resolved, print_resolutions
from headroom.cli.quotas.commands import app
from quota_metrics.config.entities import entity_of
from quota_metrics.config.resolution import Resolver

RULES = {
    "entries": [
        {"entity": {"user": "alice", "client-id": None}, "values": {"producer_byte_rate": 1048576.0}},
        {"entity": {"client-id": "app-1"}, "values": {"producer_byte_rate": 5, "request_percentage": 12.5}},
        {"entity": {"ip": "10.0.0.1"}, "values": {"connection_creation_rate": 7}},
        {"entity": {"user": ""}, "values": {"consumer_byte_rate": 9}},
    ]
}


@pytest.fixture
def rules(tmp_path: Path) -> str:
    return written(tmp_path, RULES)


def written(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "quotas.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(*arguments: str) -> str:
    """The one-line message of a command with invalid input."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("headroom: ")
    return lines[0].removeprefix("headroom: ")


def test_infinite_quota_survives_a_json_round_trip(tmp_path: Path, rules: str) -> None:
    """A broker accepts it for request_percentage and never throttles by it; JSON has no number for it."""
    change = ("--from", rules, "--client-id", "app-1", "--add", "request_percentage=inf", "--output", "json")
    printed = run("alter", *change).stdout
    again = written(tmp_path, printed)
    for output in ("json", "text", "table"):
        shown = run("describe", "--from", again, "--output", output).stdout
        assert shown == (printed if output == "json" else shown)
        assert ("Infinity" if output == "json" else "inf") in shown
    of_client = ("--from", again, "--user", "bob", "--client-id", "app-1", "--output", "json")
    [resolved] = json.loads(run("resolve", *of_client).stdout)
    assert resolved["quotas"]["request_percentage"]["value"] == "Infinity"


@pytest.mark.parametrize("value", ['"inf"', '"5"', '"-Infinity"', '"NaN"', "NaN", "1e999", "null", "true"])
def test_other_texts_and_non_finite_numbers_are_refused(tmp_path: Path, value: str) -> None:
    file = written(
        tmp_path, f'{{"entries": [{{"entity": {{"user": "a"}}, "values": {{"request_percentage": {value}}}}}]}}'
    )
    assert refused("describe", "--from", file).startswith("left out: line 1: entries[0]: request_percentage is ")


def test_resolve_prints_json(rules: str) -> None:
    result = run("resolve", "--from", rules, "--user", "alice", "--client-id", "app-1", "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [
        {
            "user": "alice",
            "client_id": "app-1",
            "ip": None,
            "quotas": {
                "producer_byte_rate": {
                    "value": 1048576.0,
                    "entity": {"user": "alice", "client-id": None},
                    "metric_tags": {"user": "alice", "client-id": "app-1"},
                    "overridden": [{"entity": {"client-id": "app-1"}, "value": 5.0}],
                },
                "request_percentage": {
                    "value": 12.5,
                    "entity": {"client-id": "app-1"},
                    "metric_tags": {"user": "", "client-id": "app-1"},
                    "overridden": [],
                },
            },
            "callback_classes": [],
            "not_understood": {},
        }
    ]


def test_rules_of_other_vendors_may_apply(capsys: pytest.CaptureFixture[str]) -> None:
    """Redpanda has quotas of client-id-prefix; whether they win, only the broker knows."""
    key, alice = "producer_byte_rate", entity_of({"user": "alice"})
    prefix = entity_of({"user": "alice", "client-id-prefix": "app-"})
    resolver = Resolver({alice: {key: 7.0}, prefix: {key: 5.0}})
    for user in ("alice", "bob"):
        foreign = {key: resolver.not_understood(key, user, "app-1")}
        resolved = Resolved((user, "app-1", None), resolver.resolve(user, "app-1"), not_understood=foreign)
        print_resolutions([resolved], named=False)
    assert capsys.readouterr().out == (
        "producer_byte_rate=7 {user=alice}\n"
        "producer_byte_rate: not understood, may apply: 5 {user=alice, client-id-prefix=app-}\n"
        "no rule applies to {user=bob, client-id=app-1}: it has no quota\n"
    )


def test_names_as_other_tools_write_them_are_named_with_the_right_spelling(tmp_path: Path) -> None:
    """Users as in ACLs and in Terraform's kafka_quota, Aiven's word for the default, and that which rpk prints."""
    names = ("user", "User:CN=app"), ("user", "User:App1"), ("client-id", "default"), ("user", "<default>")
    entries = [{"entity": dict([name]), "values": {"producer_byte_rate": 5}} for name in names]
    file = written(tmp_path, {"entries": entries})
    principal = "is taken literally, but quotas have users without their type: write"
    default = "is taken literally, but the default is <default> in YAML, null in JSON, --defaults"

    def said(*command: str) -> list[str]:
        result = run(*command, "--from", file)
        assert result.exit_code == 0
        return sorted(line.removeprefix("headroom: ") for line in result.stderr.splitlines())

    of_file = [f"user '<default>' {default} user among flags", f"user 'User:App1' (and 1 more) {principal} 'App1'"]
    assert said("describe") == [f"client-id 'default' {default} client-id among flags", *of_file]
    (tmp_path / "pairs.json").write_text('[["User:App2", "*"]]')
    assert said("resolve", "--pairs", str(tmp_path / "pairs.json")) == [
        f"client-id '*' (and 1 more) {default} client-id among flags", of_file[0], of_file[1].replace("1 m", "2 m"),
    ]  # fmt: skip
    added = "alter", "--client-id", "app", "--add", "producer_byte_rate=5"
    assert said(*added, "--user", "User:alice") == [f"user 'User:alice' {principal} 'alice'"]


def test_resolve_prints_text(rules: str) -> None:
    assert run("resolve", "--from", rules, "--names", "user=alice,client-id=app-1").stdout == (
        "producer_byte_rate=1048576 {user=alice, client-id=<default>}\n"
        "  overrides 5 {client-id=app-1}\n"
        "request_percentage=12.5 {client-id=app-1}\n"
    )


def test_pairs_are_resolved_in_order(rules: str, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.json"
    pairs.write_text('[["bob", "app-1"], ["", null], [null, null, "10.0.0.1"], [null, "x"]]')
    resolved = json.loads(run("resolve", "--from", rules, "--pairs", str(pairs), "--output", "json").stdout)
    assert [(one["user"], one["client_id"], one["ip"], sorted(one["quotas"])) for one in resolved] == [
        ("bob", "app-1", None, ["producer_byte_rate", "request_percentage"]),
        ("", None, None, []),
        (None, None, "10.0.0.1", ["connection_creation_rate"]),
        (None, "x", None, []),
    ]
    pairs.write_text("[]")
    assert json.loads(run("resolve", "--from", rules, "--pairs", str(pairs), "--output", "json").stdout) == []


def test_describe_prints_text_json_and_table(rules: str) -> None:
    assert run("describe", "--from", rules, "--names", "client-id=app-1").stdout == (
        "{client-id=app-1}\nproducer_byte_rate=5\nrequest_percentage=12.5\n"
    )
    assert json.loads(run("describe", "--from", rules, "--output", "json").stdout) == RULES
    table = run("describe", "--from", rules, "--defaults", "client-id", "--output", "table").stdout
    assert "{user=alice, client-id=<default>}" in table
    assert "1048576" in table
    assert "app-1" not in table


def test_describe_filters_entities(rules: str) -> None:
    def described(*flags: str) -> int:
        return len(json.loads(run("describe", "--from", rules, *flags, "--output", "json").stdout)["entries"])

    assert described() == 4
    assert described("--any", "user") == 2
    assert described("--any", "user", "--strict") == 1
    assert described("--user", "alice", "--strict") == 0
    assert described("--user", "alice", "--any", "client-id", "--strict") == 1
    assert described("--user", "") == 1
    assert described("--ip", "10.0.0.1") == 1
    assert described("--strict") == 0
    assert described("--match", "app") == 1
    assert described("--match", "no such name") == 0


def test_alter_of_a_file_prints_the_result_without_writing(rules: str) -> None:
    flags = ["--from", rules, "--names", "client-id=app-1", "--output", "json"]
    changed = run("alter", *flags, "--add", "consumer_byte_rate=1e6", "--delete", "producer_byte_rate")
    assert json.loads(changed.stdout)["entries"][1] == {
        "entity": {"client-id": "app-1"},
        "values": {"request_percentage": 12.5, "consumer_byte_rate": 1000000.0},
    }
    gone = run("alter", *flags, "--delete", "request_percentage,producer_byte_rate")
    assert len(json.loads(gone.stdout)["entries"]) == 3
    assert json.loads(run("alter", *flags, "--add", "request_percentage=1", "--validate-only").stdout) == RULES
    assert json.loads(Path(rules).read_text()) == RULES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--user", "a", "--add", "nothing=1"], "Invalid configuration key nothing"),
        (["--user", "a", "--ip", "1.1.1.1", "--add", "producer_byte_rate=1"], "shouldnot be combined"),
    ],
)
def test_invalid_changes_are_refused_as_in_kafka(rules: str, change: list[str], message: str) -> None:
    result = run("alter", "--from", rules, *change)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "was refused with INVALID_REQUEST (42)" in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe"], "give one of --bootstrap-server HOST:PORT and --from FILE"),
        (["describe", "--bootstrap-server", "here"], "'here' is not HOST:PORT"),
        (["describe", "--from", "/nowhere/at/all"], "/nowhere/at/all cannot be read: No such file or directory"),
        (["describe", "--from", "x", "--bootstrap-server", "h:1"], "give one of"),
        (["describe", "--from", "x", "--names", "group=x"], "unknown entity type in 'group=x'"),
        (["describe", "--from", "x", "--names", "user"], "--names 'user' is not TYPE=NAME"),
        (["describe", "--from", "x", "--names", "user=CN=a,OU=b"], "unknown entity type in 'OU=b'"),
        (["describe", "--from", "x", "--defaults", "group"], "unknown entity type in 'group'"),
        (["describe", "--from", "x", "--user", "a", "--defaults", "user"], "user is given more than once"),
        (["describe", "--from", "x", "--user", "a\udcff"], "is not UTF-8"),
        (["resolve", "--from", "x"], "name a client"),
        (["resolve", "--from", "x", "--user", "u", "--pairs", "p"], "name a client"),
        (["alter", "--from", "x", "--add", "producer_byte_rate=1"], "name an entity"),
        (["alter", "--from", "x", "--user", "u"], "say what to change"),
        (["alter", "--from", "x", "--user", "u", "--add", "producer_byte_rate"], "is not KEY=VALUE"),
        (["alter", "--from", "x", "--user", "u", "--add", "producer_byte_rate=nan"], "'nan' is not a number"),
        (["alter", "--from", "x", "--user", "u", "--add", "producer_byte_rate=1k"], "'1k' is not a number"),
        (["alter", "--from", "x", "--user", "u", "--add", "a=1", "--delete", "a"], "a is given more than once"),
        (["describe", "--bootstrap-server", "h:1", "--command-config", "/nowhere"], "/nowhere cannot be read"),
    ],
)
def test_invalid_flags_are_refused(arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", 'not an object with "entries", a list'),
        ({"entries": {}}, 'not an object with "entries", a list'),
        ({"entries": [1]}, "entries[0]: not an object"),
        ({"entries": [{"entity": {"user": "\udfff"}, "values": {}}]}, "entries[0]: the name of user is neither"),
        ({"entries": [{"entity": {"user": "a"}, "value": {}}]}, "entries[0]: not an object"),
        ({"entries": [{"entity": {}, "values": {}}]}, '"entity" is not an object with at least one of'),
        ({"entries": [{"entity": {"group": "a"}, "values": {}}]}, "unknown entity type 'group'"),
        ({"entries": [{"entity": {"user": 1}, "values": {}}]}, "neither a string nor null"),
        ({"entries": [{"entity": {"user": "a", "ip": None}, "values": {}}]}, "ip goes with neither"),
        ({"entries": [{"entity": {"user": "a"}}]}, '"values" is not an object'),
        ({"entries": [{"entity": {"user": "a"}, "values": {"rate": 1}}]}, "unknown key 'rate'"),
        ({"entries": [{"entity": {"ip": "1.1.1.1"}, "values": {"producer_byte_rate": 1}}]}, "unknown key"),
        ({"entries": [{"entity": {"user": "a"}, "values": {"producer_byte_rate": -1}}]}, "is -1, not a number greater"),
    ],
)
def test_invalid_quota_file_is_refused(tmp_path: Path, document: Any, message: str) -> None:
    assert message in refused("describe", "--from", written(tmp_path, document))


INVALID_PAIRS = ["", "{}", "[[]]", "[1]", '[["a"]]', '[["a", 1]]', '[["a", "b", "c", "d"]]', r'[["\ud800", null]]']


@pytest.mark.parametrize("pairs", INVALID_PAIRS)
def test_invalid_pairs_are_refused(rules: str, tmp_path: Path, pairs: str) -> None:
    (tmp_path / "pairs.json").write_text(pairs)
    refused("resolve", "--from", rules, "--pairs", str(tmp_path / "pairs.json"))


@pytest.mark.parametrize(
    "command",
    [
        "quotas describe --bootstrap-server",
        "quotas stale --bootstrap-server",
        "quotas resolve --user u --bootstrap-server",
        "quotas alter --user u --add producer_byte_rate=1 --bootstrap-server",
        "subscriptions list --bootstrap-server",
        "gateway check --upstream",
        "cluster show --upstream",
    ],
)
def test_unreachable_cluster_is_a_one_line_error(command: str) -> None:
    result = CliRunner().invoke(headroom, [*command.split(), "127.0.0.1:1"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("headroom: cannot reach 127.0.0.1:1: Connection refused; check the address")
