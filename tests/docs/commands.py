"""The commands that pages show: lines of code blocks without a language, and spans of code that are complete.

A span or line with `...` or `[...]` is no command but the mention of one. Placeholders such as BROKER:9092 are filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Programs that a line may begin with, and what is not run of it: these change the machine, take very long, or need what
# no test machine has. Each has a test of its own, which is named.
NOT_RUN = {
    "buildah": "make image",
    "podman": "make image",
    "docker": "tests/deploy/test_files.py",
    "helm": "tests/deploy/test_chart.py",
    "systemctl": "tests/deploy/test_files.py",
    "useradd": "tests/deploy/test_files.py",
    "install": "tests/deploy/test_files.py",
    "open": "a browser",
    "kafka-acls.sh": "Kafka's own, and needs an authorizer",
    "kafka-client-metrics.sh": "Kafka's own; make oracle compares with its class",
    "spark-submit": "tests/spark_jobs/jobs/test_cluster.py",
}
_RUN = ("headroom", "make", "python", "python3", "curl", "pip", "zip", "openssl", "printf", "promtool", "pytest")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_COMMENT = re.compile(r"\s+#\s.*$")
_ASSIGNED = re.compile(r"(?:[A-Z_]+=\S+\s+)+")
_MENTION = re.compile(r"\.\.\.|\[[A-Z,-]|\bT\b|\||<|[A-Z]+_[A-Z]+$")


def commands(page: Path) -> list[str]:
    """In their order, each once."""
    return list(dict.fromkeys(_of(page.read_text())))


def _of(text: str) -> Iterator[str]:
    for language, code in _FENCE.findall(text):
        if language in ("", "sh", "bash"):
            for line in code.replace("\\\n", " ").splitlines():
                if program(line := _COMMENT.sub("", line.strip())) in (*_RUN, *NOT_RUN) and "..." not in line:
                    yield line
    for span in _SPAN.findall(_FENCE.sub("", text)):
        if span.startswith("SELECT "):
            yield f'headroom sql "{span}"'
        elif program(span) in ("headroom", "curl", "promtool") and is_complete(span):
            yield span


def program(line: str) -> str:
    """What a line runs, behind variables that it sets."""
    return _ASSIGNED.sub("", line).partition(" ")[0]


def is_complete(span: str) -> bool:
    """Whether it has options with their values."""
    return bool(re.search(r" --?[a-z]", span)) and not _MENTION.search(span)
