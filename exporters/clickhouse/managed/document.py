"""Writes configuration documents as XML, because the server in the chdb wheel is built without YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring


def write_document(file: Path, content: dict[str, Any]) -> None:
    """Replaces the file atomically; mode 0600, because the users file holds password hashes. Raises OSError."""
    root = Element("clickhouse")
    _fill(root, content)
    indent(root)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(tostring(root, encoding="utf-8"))
    new.replace(file)


def _fill(element: Element, content: dict[str, Any]) -> None:
    """A list repeats its element, a mapping nests, other values become text."""
    for name, value in content.items():
        for each in value if isinstance(value, list) else [value]:
            child = SubElement(element, name)
            if isinstance(each, dict):
                _fill(child, each)
            else:
                child.text = str(each)
