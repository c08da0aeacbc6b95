"""The generated pages of docs/ are up to date: `make docs` writes them."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headroom.cli.config import app
from headroom.config.reference import as_markdown, settings
from quota_metrics.amounts import STYLES
from tests.docs.reference_pages import DOCS, STYLESHEET, metrics_page, stylesheet, tables_page
from tests.kit.clickhouse import running_clickhouse

ROOT = DOCS.parent
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def test_settings_page_is_up_to_date() -> None:
    assert (DOCS / "settings.md").read_text() == as_markdown(), "run make docs"


def test_every_setting_is_described_once() -> None:
    assert [setting.name for setting in settings() if not setting.description] == []
    rows = [line.partition("|")[2] for line in as_markdown().splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([a-z_.]+)`", row.split(" | ")[0])) == sorted(
        setting.name for setting in settings()
    )


def test_metrics_page_is_up_to_date() -> None:
    assert (DOCS / "metrics.md").read_text() == metrics_page(), "run make docs"


@pytest.mark.clickhouse
def test_tables_page_is_up_to_date(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "clickhouse") as server:
        assert (DOCS / "tables.md").read_text() == tables_page(server.writer), "run make docs"


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS.rglob("*.md")], ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    missing = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


def test_every_page_is_linked_from_the_index() -> None:
    linked = set(_LINK.findall((DOCS / "README.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} - linked == set()


def test_reference_command_prints_the_settings_page() -> None:
    assert CliRunner().invoke(app, ["reference"]).output == as_markdown()
    listed = json.loads(CliRunner().invoke(app, ["reference", "--output", "json"]).output)
    assert [each["name"] for each in listed] == [setting.name for setting in settings()]
    assert {each["name"]: each["variable"] for each in listed}["spool.max_bytes"] == "HEADROOM_SPOOL__MAX_BYTES"


def test_config_check_lists_all_errors_and_show_masks_secrets(tmp_path: Path) -> None:
    file = tmp_path / "headroom.yaml"
    file.write_text("spool: {max_bytes: 0}\nunheard: 1\n")
    checked = CliRunner().invoke(app, ["check", "--config", str(file)])
    assert checked.exit_code == 2
    assert "spool.max_bytes" in checked.stderr
    assert "unheard: unknown setting" in checked.stderr
    target = "{broker_id: 1, agent: prometheus, url: 'http://scraper:the-token-of-a-collector@127.0.0.1:7071/metrics'}"
    file.write_text(
        "otlp: {token: the-token-of-a-collector}\nspool: {max_bytes: 5}\nweb: {trusted_proxies: [10.0.0.5/32]}\n"
        f"quotas: {{jmx: {{targets: [{target}]}}}}\n"
    )
    assert CliRunner().invoke(app, ["check", "--config", str(file)]).output == "ok\n"
    shown = CliRunner().invoke(app, ["show", "--config", str(file)]).output
    assert "max_bytes: 5" in shown
    assert yaml.safe_load(shown)["web"]["trusted_proxies"] == ["10.0.0.5/32"]
    assert "the-token-of-a-collector" not in shown
    assert "token: '********'" in shown


def test_pages_have_the_colours_of_levels() -> None:
    text = STYLESHEET.read_text()
    assert text == stylesheet(text), "run make docs"
    assert all(f".{level} {{" in text and f"--{level}: {style.dark};" in text for level, style in STYLES.items())
