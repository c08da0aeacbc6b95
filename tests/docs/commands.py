"""The commands that pages show: lines of code blocks without a language, blocks of `shell` as a whole, complete spans.

A span or line with `...` or `[...]` is no command but the mention of one, as is a span of NAMED. Placeholders such as
BROKER:9092 are filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# What a command may begin with that is not run: it changes the machine, takes very long, or needs what no test machine
# has. Each has a test of its own, which is named.
NOT_RUN = {
    "buildah": "make image",
    "podman": "make image",
    "docker": "tests/deploy/test_files.py",
    "helm": "tests/deploy/test_chart.py",
    "kubectl": "tests/deploy/test_chart_network.py",
    "systemctl": "tests/deploy/test_files.py",
    "useradd": "tests/deploy/test_files.py",
    "install": "tests/deploy/test_files.py",
    "open": "a browser",
    "kafka-acls.sh": "Kafka's own, and needs an authorizer",
    "kafka-client-metrics.sh": "Kafka's own; make oracle compares with its class",
    "spark-submit": "tests/spark_jobs/jobs/test_cluster.py",
    "headroom store check": "tests/headroom/cli/test_store_check.py",
    "headroom verify-client": "tests/kafka_clients/test_verify_client.py",
}
# Commands of which pages speak, and which need more words.
NAMED = {
    "headroom demo",
    "headroom gateway check",
    "headroom job",
    "headroom quotas alter",
    "headroom quotas export",
    "headroom quotas plan",
    "headroom quotas resolve",
    "headroom quotas stale",
    "headroom quotas what-if",
    "headroom serve",
    "headroom serve --clickhouse",
    "headroom sql",
    "headroom subscriptions",
    "headroom subscriptions alter",
    "headroom subscriptions preview",
    "promtool test rules",
}
_RUN = ("headroom", "make", "python", "python3", "curl", "pip", "zip", "openssl", "printf", "promtool", "pytest", "sed")
_RUN_IN_TEXT = ("headroom", "curl", "promtool")
_PROGRAMS = {*_RUN, *(begin.partition(" ")[0] for begin in NOT_RUN)}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_COMMENT = re.compile(r"\s+#\s.*$")
_ASSIGNED = re.compile(r"(?:[A-Z_]+=\S+\s+)+")
_MENTION = re.compile(r"\.\.\.|\[[A-Z,-]|\bT\b|\||<| > [a-z]|[A-Z]+_[A-Z]+$")


def commands(page: Path) -> list[str]:
    """In their order, each once."""
    return list(dict.fromkeys(_of(page.read_text())))


def scripts(page: Path) -> list[str]:
    """Lines that belong together."""
    return [code for language, code in _FENCE.findall(page.read_text()) if language == "shell"]


def strange_lines(page: Path) -> list[str]:
    """Lines of code blocks without a language that are no command."""
    return [line for line in _lines(page.read_text()) if program(line) not in _PROGRAMS]


def is_run(command: str) -> bool:
    return not any(command == begin or command.startswith(f"{begin} ") for begin in NOT_RUN)


def _of(text: str) -> Iterator[str]:
    yield from (line for line in _lines(text) if "..." not in line)
    for span in _SPAN.findall(_FENCE.sub("", text)):
        if span.startswith("SELECT "):
            yield f'headroom sql "{span}"'
        elif program(span) in _RUN_IN_TEXT and is_complete(span):
            yield span


def _lines(text: str) -> Iterator[str]:
    for language, code in _FENCE.findall(text):
        if language in ("", "sh", "bash"):
            lines = (_COMMENT.sub("", line.strip()) for line in code.replace("\\\n", " ").splitlines())
            yield from (line for line in lines if line)


def program(line: str) -> str:
    """What a line runs, behind variables that it sets."""
    return _ASSIGNED.sub("", line).partition(" ")[0]


def is_complete(span: str) -> bool:
    """Whether it is a whole command: with options and their values, or one that needs none."""
    return " " in span and span not in NAMED and not _MENTION.search(span)
