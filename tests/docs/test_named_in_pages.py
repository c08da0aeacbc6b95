"""Commands, flags, make targets, settings, tables, metrics and files that pages name exist; decisions are short."""

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headroom.cli.main import app
from headroom.config.reference import settings
from headroom.config.settings import ServeConfig
from tests.docs.reference_pages import DOCS, FENCE, SPAN

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SETTINGS = {setting.name for setting in settings()}
SECTIONS = {".".join(name.split(".")[:depth]) for name in SETTINGS for depth in range(1, name.count(".") + 1)}
GLOBAL_FLAGS = {"--help", "--version", "--install-completion"}
# Words after `headroom.` that are files, or a table that readers do not use.
NO_TABLES = {"json", "parquet", "yaml", "env", "service", "rules", "telemetry", "example", "schema_migrations"}
# Users and a cluster of ClickHouse, and prefixes of several metrics.
NO_METRICS = {
    "headroom_bytes_per_s",  # of /api/v1/me
    "headroom_pages",
    "headroom_reader",
    "headroom_writer",
    "headroom_single",
    "kafka_client_",
    "kafka_client_quota_window_",
}

_CONTINUED = re.compile(r"\\\n\s*")
_FLAG = re.compile(r"--[a-z][a-z-]+")
_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)+")
_TARGET = re.compile(r"(?:\w+=\w+ )?make ([a-z-]+)")
_TABLE = re.compile(r"\bheadroom\.(\w+)\b")
_METRIC = re.compile(r"(?<![\w.])(?:headroom|kafka_client|kafka_server_client_metrics)_\w+")


def blocks(page: Path, language: str) -> list[str]:
    return [match[2] for match in FENCE.finditer(page.read_text()) if match[1] == language]


def spans(page: Path) -> list[str]:
    """The inline code."""
    return SPAN.findall(FENCE.sub("", page.read_text()))


def code_lines(page: Path) -> list[str]:
    """Lines of a shell or of output, and inline code."""
    return [*(line for text in blocks(page, "") for line in _CONTINUED.sub("", text).splitlines()), *spans(page)]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `headroom COMMAND ...`, without comments."""
    for line in code_lines(page):
        if re.match(r"headroom [a-z-]", line):
            yield [word for part in shlex.split(line, comments=True) for word in part.split("|")]


@functools.cache
def root_command() -> Any:
    return typer.main.get_command(app)


def flags_of(words: list[str]) -> set[str] | None:
    """The flags of the command that the words name; None when there is no such command."""
    command = root_command()
    context, rest = typer.Context(command), words[1:]
    while hasattr(command, "get_command") and rest and re.match(r"[a-z]", rest[0]):
        command = command.get_command(context, rest[0])
        rest = rest[1:]
    return {option for parameter in command.params for option in parameter.opts} if command else None


def settings_of(document: dict[str, Any], prefix: str = "") -> set[str]:
    """The settings that a YAML document sets, with dots."""
    found = set()
    for name, value in document.items():
        path = f"{prefix}{name}"
        found |= settings_of(value, f"{path}.") if path in SECTIONS and isinstance(value, dict) else {path}
    return found


def test_documented_flags_exist() -> None:
    wrong = []
    for page in PAGES:
        for words in commands(page):
            known, given = flags_of(words), {flag for word in words for flag in _FLAG.findall(word)}
            if known is None or not given <= known | GLOBAL_FLAGS:
                wrong.append((page.name, " ".join(words)))
    assert wrong == []


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(page.name, match[1]) for page in PAGES for line in code_lines(page) if (match := _TARGET.match(line))}
    assert {(page, target) for page, target in named if target not in targets} == set()


def test_documented_settings_exist() -> None:
    wrong = set()
    for page in PAGES:
        named = {span for span in spans(page) if _SETTING.fullmatch(span) and span.partition(".")[0] in SECTIONS}
        for document in map(yaml.safe_load, blocks(page, "yaml")):
            if isinstance(document, dict) and document.keys() <= set(ServeConfig.model_fields):
                named |= settings_of(document)
        files = {name for name in named if Path(name).suffix in (".md", ".yaml", ".json")}
        wrong |= {(page.name, name) for name in named - SETTINGS - SECTIONS - files}
    assert wrong == set()


def test_documented_tables_exist() -> None:
    tables = set(re.findall(r"^## (\w+)", (DOCS / "tables.md").read_text(), re.MULTILINE)) | NO_TABLES
    named = {(page.name, name) for page in PAGES for line in code_lines(page) for name in _TABLE.findall(line)}
    assert {one for one in named if one[1] not in tables} == set()


def test_documented_metrics_exist() -> None:
    listed = set(_METRIC.findall((DOCS / "metrics.md").read_text())) | NO_METRICS
    known = listed | {f"{name}_{suffix}" for name in listed for suffix in ("bucket", "sum", "count")}
    named = {(page.name, name) for page in PAGES for line in spans(page) for name in _METRIC.findall(line)}
    assert {one for one in named if one[1] not in known} == set()


GENERATED = {"performance.md", "settings.md", "tables.md", "metrics.md"}
EVERYWHERE = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
WRITTEN = [page for page in EVERYWHERE if page.name not in GENERATED]
MOST_LINES = 10
TREES = ("headroom", "spark_jobs", "telemetry", "quota_metrics", "exporters", "deploy", "tests", "docs", ".ci")

_LINK = re.compile(r"\]\([^)]*\)")
_FILE = re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, TREES))})/[\w/.-]*[\w/-](?![\w*{{])")
_DATE = re.compile(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}\b|\bat [0-9]{1,2}:[0-9]{2}\b")


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = {name for span in SPAN.findall(page.read_text()) for name in _FILE.findall(span)}
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_has_no_dates(page: Path) -> None:
    prose = SPAN.sub("", FENCE.sub("", _LINK.sub("", page.read_text())))
    assert [line for line in prose.splitlines() if _DATE.search(line)] == []


def test_a_decision_has_a_status_and_ten_lines_at_most() -> None:
    entries = re.split(r"^## (?=\d+\.)", (ROOT / "DECISIONS.md").read_text(), flags=re.MULTILINE)[1:]
    numbers = [int(entry.partition(".")[0]) for entry in entries]
    assert numbers == list(range(1, len(entries) + 1))
    for number, entry in zip(numbers, entries, strict=True):
        _, status, *text = entry.strip().splitlines()
        assert re.match(r"Status: (in force|superseded by \d+)\b", status), entry
        assert len(text) <= MOST_LINES, f"{number}: {len(text)} lines"
        replaced = {int(one) for one in re.findall(r"superseded by (\d+)", status)}
        assert all(number < one <= len(entries) for one in replaced), entry
