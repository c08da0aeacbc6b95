"""Values of Python in SQL files: `{{name}}` stands for a value."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"\{\{(\w+)\}\}")


def filled(template: str, values: Mapping[str, object]) -> str:
    """`template` with `str(values[name])` for each `{{name}}`, verbatim. Raises KeyError for a name without a value."""
    return _NAME.sub(lambda name: str(values[name[1]]), template)
