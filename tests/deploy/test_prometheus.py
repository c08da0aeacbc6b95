"""The alert rules are valid, tested for firing and not firing, documented, and use metrics that exist."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporters.self_metrics import CATALOGUE
from tests.kit.debian import promtool, run

pytestmark = pytest.mark.promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks"
NAMES = ("headroom", "kafka-jmx")
_THRESHOLD = re.compile(r"(>=|<=|==|>|<) \d+(?:\.\d+)?(?![\d.]| \*)")
_FACTOR = re.compile(r"([<>]=?(?: on \([^)]*\) group_left \(\))?) (?:[\d.]+ \* |(?=[a-z]))")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FAILED = re.compile(r'alertname=\\"(\w+)\\"')


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / f"{name}.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts(name: str) -> list[dict[str, Any]]:
    return [rule for rule in rules(name) if "alert" in rule]


ALERTS = [(name, alert) for name in NAMES for alert in alerts(name)]
each_alert = pytest.mark.parametrize(("name", "alert"), ALERTS, ids=[alert["alert"] for _, alert in ALERTS])


def failing(directory: Path, name: str, side: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> set[str]:
    """The alerts whose test of one side fails when every alert of a rule file is changed."""
    document = yaml.safe_load((RULES / f"{name}.rules.yml").read_text())
    for group in document["groups"]:
        group["rules"] = [change(rule) if "alert" in rule else rule for rule in group["rules"]]
    (directory / f"{name}.rules.yml").write_text(yaml.safe_dump(document))
    tests = yaml.safe_load((RULES / f"{name}.test.yml").read_text())
    tests["tests"] = [test for test in tests["tests"] if test["name"].endswith(f" {side}")]
    (directory / f"{name}.test.yml").write_text(yaml.safe_dump(tests))
    return set(_FAILED.findall(run(promtool(ROOT), "test", "rules", f"{name}.test.yml", cwd=directory)[1]))


@pytest.mark.parametrize("name", NAMES)
def test_rules_are_valid_and_their_tests_pass(name: str) -> None:
    status, said = run(promtool(ROOT), "check", "rules", "--lint=all", "--lint-fatal", str(RULES / f"{name}.rules.yml"))
    assert status == 0, said
    status, said = run(promtool(ROOT), "test", "rules", str(RULES / f"{name}.test.yml"))
    assert status == 0, said


@each_alert
def test_each_alert_has_a_firing_and_a_silent_test(name: str, alert: dict[str, Any]) -> None:
    tests = yaml.safe_load((RULES / f"{name}.test.yml").read_text())["tests"]
    expected = {
        test["name"]: [bool(expr["exp_samples"]) for expr in test["promql_expr_test"]]
        for test in tests
        if test["name"].startswith(f"{alert['alert']} ")
    }
    assert expected == {f"{alert['alert']} fires": [True], f"{alert['alert']} does not fire": [False]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("side", "reached"), [("fires", False), ("does not fire", True)])
def test_tests_fail_when_thresholds_are_changed(tmp_path: Path, name: str, side: str, reached: bool) -> None:
    def compared(found: re.Match[str]) -> str:
        above = not found[1].startswith("<")
        number = "-1000000000000" if above == reached else "1000000000000"
        return f"{'>' if above else '<'} {number}"

    def factored(found: re.Match[str]) -> str:
        return f"{found[1]} {'0' if found[1].startswith('>') == reached else '1000000'} * "

    def changed(alert: dict[str, Any]) -> dict[str, Any]:
        """Its comparisons are always true, or never."""
        return alert | {"expr": _FACTOR.sub(factored, _THRESHOLD.sub(compared, alert["expr"]))}

    assert failing(tmp_path, name, side, changed) == {alert["alert"] for alert in alerts(name)}


@pytest.mark.parametrize("name", NAMES)
def test_tests_fail_when_alerts_wait_longer(tmp_path: Path, name: str) -> None:
    assert failing(tmp_path, name, "fires", lambda alert: alert | {"for": "10h"}) == {
        alert["alert"] for alert in alerts(name)
    }


@each_alert
def test_each_alert_has_a_severity_and_a_runbook(name: str, alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    runbook = ROOT / alert["annotations"]["runbook_url"]
    assert runbook == RUNBOOKS / f"{alert['alert']}.md"
    text = runbook.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Urgency",
        "## What you see",
        "## Look",
        "## Decide",
        "## Undo",
        "## Rule",
    ]
    assert alert["expr"] in text
    look = text.partition("## Look\n")[2].partition("## Decide\n")[0]
    assert [language for language, _ in _BLOCK.findall(look)] == ["", "text"]  # one command, and what it prints
    undo = text.partition("## Undo\n")[2]
    assert "--delete" not in undo or "Only if the rule is new" in undo  # alter overwrites the one that was in force


def test_each_alert_about_a_client_leads_to_its_page() -> None:
    about_clients = {alert["alert"] for alert in alerts("headroom") if "kafka_client:quota_" in alert["expr"]}
    assert len(about_clients) == 8
    for alert in alerts("headroom"):
        page = alert["annotations"].get("dashboard_url", "")
        assert page.startswith("/clients/detail?cluster=") == (alert["alert"] in about_clients)
        assert ("usage" in alert["annotations"]) == (alert["alert"] in about_clients)


def test_each_runbook_has_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {alert["alert"] for _, alert in ALERTS}


OF_TARGETS = {
    "app",
    "cluster",
    "container",
    "endpoint",
    "env",
    "environment",
    "host",
    "instance",
    "job",
    "namespace",
    "node",
}
OF_TARGETS |= {"owner", "pod", "region", "release", "service", "stage", "team", "tenant", "tier", "version", "zone"}


def test_rules_and_metrics_do_not_depend_on_labels_of_targets() -> None:
    for name in NAMES:
        across_targets = [rule["expr"] for rule in rules(name) if re.search(r"(max|min) without", rule["expr"])]
        assert not across_targets, "targets have labels that a list of names to leave out does not have"
    assert {metric.name: OF_TARGETS & {*metric.labels} for metric in CATALOGUE if OF_TARGETS & {*metric.labels}} == {}


def test_rules_use_exposed_metrics() -> None:
    exposed = {metric.name for metric in CATALOGUE} | {rule["record"] for rule in rules("headroom") if "record" in rule}
    used = {
        name
        for rule in rules("headroom")
        for name in re.findall(r"\b(?:headroom|kafka_client|kafka_server)[_:][a-z_:]+", rule["expr"])
    }
    assert used - exposed == set()
