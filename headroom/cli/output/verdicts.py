"""The verdicts on a client on standard output: a table, JSON, JUnit's XML."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from xml.etree import ElementTree

from exporters.printable import printable
from exporters.text_table import Layout
from headroom.cli.output.quotas import print_json
from headroom.cli.output.tables import print_table
from telemetry.verification.findings import MEANINGS, Outcome, RuleVerdict

_TABLE_FRAME_BYTES = 64
_NOT_SEEN = "the client did nothing that the rule applies to"


def print_verdicts_table(verdicts: Sequence[RuleVerdict]) -> None:
    """A row for each rule; the frames of violations, shortened, below it."""
    rows = [
        (verdict.rule, verdict.outcome, str(verdict.observed), verdict.reason or MEANINGS[verdict.rule])
        for verdict in verdicts
    ]
    print_table(("rule", "outcome", "seen", "reason"), rows, Layout(("seen",), below=("reason",)))
    for verdict in verdicts:
        if verdict.frame:
            frame_beginning = verdict.frame[:_TABLE_FRAME_BYTES].hex()
            sys.stdout.write(f"{verdict.rule}: frame of {verdict.frame_bytes} bytes begins with {frame_beginning}\n")


def print_verdicts_json(verdicts: Sequence[RuleVerdict]) -> None:
    """A list of objects; `frame` is hexadecimal."""
    print_json(
        [
            {
                "rule": verdict.rule,
                "outcome": verdict.outcome,
                "seen": verdict.observed,
                "reason": verdict.reason,
                "meaning": MEANINGS[verdict.rule],
                "frame": verdict.frame.hex(),
                "frame_bytes": verdict.frame_bytes,
            }
            for verdict in verdicts
        ]
    )


def print_verdicts_junit(verdicts: Sequence[RuleVerdict]) -> None:
    """A test suite with a test case for each rule: a failure when it was broken, skipped when it was not seen."""
    counts = {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
    suite = ElementTree.Element(
        "testsuite",
        name="KIP-714",
        tests=str(len(verdicts)),
        failures=str(counts[Outcome.FAIL]),
        errors="0",
        skipped=str(counts[Outcome.NOT_SEEN]),
    )
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname="headroom.verify-client", name=verdict.rule)
        if verdict.outcome is Outcome.FAIL:
            failure = ElementTree.SubElement(case, "failure", message=printable(verdict.reason))
            failure.text = f"{MEANINGS[verdict.rule]}\nframe of {verdict.frame_bytes} bytes: {verdict.frame.hex()}"
        elif verdict.outcome is Outcome.NOT_SEEN:
            ElementTree.SubElement(case, "skipped", message=_NOT_SEEN)
    ElementTree.indent(suite)
    sys.stdout.write('<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, "unicode") + "\n")
