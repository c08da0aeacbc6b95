"""The class data archive is mapped where it exists. `make setup` writes it, so that all Spark tests run with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_jobs.session import archive, mapped


def test_it_is_mapped_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert mapped() == []
    archive().parent.mkdir(parents=True)
    archive().write_bytes(b"classes")
    assert mapped() == [f"-XX:SharedArchiveFile={archive()}"]


def test_another_java_has_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    here = archive()
    monkeypatch.setenv("JAVA_HOME", "/elsewhere")
    assert archive() != here
    assert archive().parent == here.parent


def test_an_option_cannot_contain_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a b"))
    archive().parent.mkdir(parents=True)
    archive().write_bytes(b"classes")
    assert mapped() == []
