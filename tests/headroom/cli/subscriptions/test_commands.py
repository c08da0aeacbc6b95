"""`headroom subscriptions` on a sink in this process, and its messages for invalid input."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headroom.cli.subscriptions import app
from headroom.subscription_preview import JAVA_POINTS, LIBRDKAFKA_POINTS, OTHER_POINTS, usual_points
from telemetry.subscriptions.kip714_rules import ClientMetrics
from telemetry.subscriptions.subscription_file import SubscriptionFile
from tests.kit.gateways import RunningSink


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[RunningSink]:
    with RunningSink(tmp_path) as running:
        yield running


def run(sink: RunningSink, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [command, "--bootstrap-server", sink.bootstrap, *arguments])


def reported(sink: RunningSink, command: str, *arguments: str) -> str:
    """The output of a command that succeeds."""
    result = run(sink, command, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def refused(result: Result, code: int) -> str:
    """The one-line message of a command that fails."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("headroom: ")
    return line.removeprefix("headroom: ")


def test_subscription_is_altered_listed_described_and_deleted(sink: RunningSink) -> None:
    assert reported(sink, "list") == reported(sink, "describe") == ""
    options = ["--metrics", "a", "--metrics", "b", "--interval", "1000", "--match", "client_id=app-.*"]
    assert reported(sink, "alter", "--name", "one", *options) == "Altered client metrics config for one.\n"
    assert sink.rules.resources == {"one": {"metrics": "a,b", "interval.ms": "1000", "match": "client_id=app-.*"}}
    assert reported(sink, "alter", "--name", "two", "--metrics", "*") == "Altered client metrics config for two.\n"
    assert reported(sink, "list") == "one\ntwo\n"
    one = "Client metrics configs for one are:\n  interval.ms=1000\n  match=client_id=app-.*\n  metrics=a,b\n"
    two = "Client metrics configs for two are:\n  interval.ms=300000\n  match=\n  metrics=*\n"
    assert reported(sink, "describe", "--name", "one") == one
    assert reported(sink, "describe") == one + two
    assert reported(sink, "delete", "--name", "one") == "Deleted client metrics config for one.\n"
    assert reported(sink, "list") == "two\n"


def test_empty_value_removes_a_key(sink: RunningSink) -> None:
    reported(sink, "alter", "--name", "one", "--metrics", "a", "--interval", "1000")
    reported(sink, "alter", "--name", "one", "--interval", "")
    assert sink.rules.resources == {"one": {"metrics": "a"}}


def test_generated_name_is_used(sink: RunningSink) -> None:
    said = reported(sink, "alter", "--generate-name", "--metrics", "a")
    drawn = re.fullmatch(r"Altered client metrics config for (\w{22})\.\n", said)
    assert drawn
    assert list(sink.rules.resources) == [drawn[1]]


def test_list_and_describe_print_json(sink: RunningSink) -> None:
    reported(sink, "alter", "--name", "one", "--metrics", "a")
    assert json.loads(reported(sink, "list", "--output", "json")) == ["one"]
    assert json.loads(reported(sink, "describe", "--output", "json")) == {
        "one": {"interval.ms": "300000", "match": "", "metrics": "a"}
    }


def test_control_characters_of_a_name_are_escaped(sink: RunningSink) -> None:
    name = "a\x1b[31m\nb"
    assert reported(sink, "alter", "--name", name, "--metrics", "a") == (
        "Altered client metrics config for a\\x1b[31m\\nb.\n"
    )
    assert reported(sink, "list") == "a\\x1b[31m\\nb\n"
    assert reported(sink, "describe").startswith("Client metrics configs for a\\x1b[31m\\nb are:\n")
    assert json.loads(reported(sink, "list", "--output", "json")) == [name]


@pytest.mark.parametrize(
    ("command", "arguments", "line"),
    [
        ("describe", ["--name", "nope"], "there is no client metrics subscription 'nope'"),
        ("delete", ["--name", "nope"], "there is no client metrics subscription 'nope'"),
        ("alter", ["--metrics", "a"], "give one of --name and --generate-name"),
        ("alter", ["--name", "a", "--generate-name"], "give one of --name and --generate-name"),
        ("alter", ["--name", "\udcff"], r"'\udcff' is not UTF-8"),
        ("alter", ["--name", "a", "--metrics", "\udcff"], r"'\udcff' is not UTF-8"),
        ("preview", [], "nothing to preview: give --metrics, --interval, --match, or the --name of a subscription"),
        ("preview", ["--interval", "5"], "Invalid value 5 for interval.ms, interval must be between 100 and 3600000"),
        ("preview", ["--match", "foo=x"], "Illegal client matching pattern: foo=x"),
        ("preview", ["--metrics", "a", "--since", "soon"], "--since: cannot read the duration 'soon'"),
    ],
)
def test_invalid_arguments_exit_with_2(sink: RunningSink, command: str, arguments: list[str], line: str) -> None:
    assert refused(run(sink, command, *arguments), 2).startswith(line)


@pytest.mark.parametrize("command", [["list"], ["describe"], ["alter", "--name", "a"], ["delete", "--name", "a"]])
def test_invalid_command_config_exits_with_2(sink: RunningSink, tmp_path: Path, command: list[str]) -> None:
    properties = tmp_path / "client.properties"
    line = refused(run(sink, *command, "--command-config", str(properties)), 2)
    assert line == f"{properties} cannot be read: No such file or directory"
    properties.write_text("security.protocol=SSH\n")
    assert "SSH" in refused(run(sink, *command, "--command-config", str(properties)), 2)
    assert sink.rules.resources == {}


def test_refusal_of_the_cluster_exits_with_1(sink: RunningSink) -> None:
    line = refused(run(sink, "alter", "--name", "one", "--interval", "5"), 1)
    assert line.startswith("the change of client metrics 'one' was refused with INVALID_REQUEST (42): Invalid value 5")


def test_invalid_address_exits_with_2() -> None:
    for address in ("nonsense", "", ",", ":1", "h:0", "h:65536", "h:\u0661", "a..b:1", "\udcff:1"):
        result = CliRunner().invoke(app, ["list", "--bootstrap-server", address])
        assert refused(result, 2) == f"{address!r} is not HOST:PORT"


def test_unreachable_store_exits_with_1(sink: RunningSink) -> None:
    line = refused(run(sink, "preview", "--metrics", "a", "--url", "http://127.0.0.1:1"), 1)
    assert line.startswith("cannot reach http://127.0.0.1:1: Connection refused; start `headroom serve`")


@pytest.mark.parametrize(
    ("name", "version", "points"),
    [
        ("apache-kafka-java", "4.3.1", JAVA_POINTS),
        ("librdkafka", "2.16.0", LIBRDKAFKA_POINTS),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.0", LIBRDKAFKA_POINTS),
        ("confluent-kafka-javascript", "1.6.1-librdkafka-2.12.0", LIBRDKAFKA_POINTS),
        ("confluent-kafka-dotnet", "2.12.0", LIBRDKAFKA_POINTS),
        ("kgo", "1.22", OTHER_POINTS),
        ("unknown", "unknown", OTHER_POINTS),
    ],
)
def test_usual_points_depend_on_the_client_software(name: str, version: str, points: int) -> None:
    assert usual_points(name, version) == points


def test_alter_writes_the_file_of_a_cluster_without_subscriptions(tmp_path: Path) -> None:
    """Brokers before Kafka 3.7 have no CLIENT_METRICS; `headroom serve` reads this file instead."""
    path = tmp_path / "subscriptions.yaml"

    def alter(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["alter", "--file", str(path), "--name", "all", *arguments])

    assert alter("--metrics", "org.apache.kafka.,x.", "--interval", "5000").exit_code == 0
    assert alter("--match", "client_id=a.*").exit_code == 0
    with SubscriptionFile(path, (rules := ClientMetrics(new_id=lambda: bytes(16))), lambda: 0).alone():
        assert rules.resources == {
            "all": {"metrics": "org.apache.kafka.,x.", "interval.ms": "5000", "match": "client_id=a.*"}
        }
    before = path.read_text()
    assert "interval" in refused(alter("--interval", "7"), 2)
    assert path.read_text() == before
    assert alter("--metrics", "", "--interval", "", "--match", "").exit_code == 0
    assert path.read_text() == ""
    assert "cannot be written" in refused(
        CliRunner().invoke(app, ["alter", "--file", str(tmp_path / "no" / "file"), "--name", "a", "--metrics", "x"]), 2
    )
