"""Every value that the chart's schema describes is refused when it is of a wrong type, unknown or out of bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from tests.kit.helm_chart import CHART, rendered

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
WRONG_TYPE: dict[str, Any] = {"string": 7, "integer": "7", "boolean": "yes", "array": "x", "object": "x"}
STRINGS = ("a b", "-", "!")  # each pattern refuses one of them
ANYTHING = {"global", "config"}  # what Helm and `headroom serve` check


def bad_values(schema: dict[str, Any]) -> Iterator[Any]:
    """Values that differ from what the schema allows in one thing each."""
    if "$ref" in schema:
        yield from bad_values(SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]])
        return
    if "type" in schema:
        yield WRONG_TYPE[schema["type"]]
    if "enum" in schema or "oneOf" in schema:
        yield from (value for value in ("no-such", True) if value not in schema.get("enum", ()))
    if "pattern" in schema:
        yield next(text for text in STRINGS if not re.search(schema["pattern"], text))
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    yield from bad_containers(schema)


def bad_containers(schema: dict[str, Any]) -> Iterator[Any]:
    if "minItems" in schema:
        yield []
    if "uniqueItems" in schema:
        yield [1, 1]
    if "items" in schema:
        yield from ([item] for item in bad_values(schema["items"]))
        if "required" in schema["items"]:
            yield [{}]
    if schema.get("additionalProperties") is False:
        yield {"no-such": 1}
    elif "additionalProperties" in schema:
        yield from ({"key": value} for value in bad_values(schema["additionalProperties"]))
    for name, part in schema.get("properties", {}).items():
        if name not in ANYTHING:
            yield from ({name: value} for value in bad_values(part))


def innermost(values: Any) -> str:
    """The name that an error must contain: that of the value which is bad, or of the one that holds it."""
    names = []
    while isinstance(values, dict) and values:
        [(name, values)] = values.items()
        names.append(name)
    return str(names[-1])


CASES = [values for values in bad_values(SCHEMA) if isinstance(values, dict)]


@pytest.mark.parametrize("values", CASES, ids=lambda values: json.dumps(values, separators=(",", ":")))
def test_bad_value_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        rendered(values)
    assert innermost(values) in str(refused.value)


def test_every_described_value_has_a_bad_one() -> None:
    tried = {name for values in CASES for name in values}
    assert tried == set(SCHEMA["properties"]) - ANYTHING | {"no-such"}


def test_value_that_is_left_empty_is_refused_by_name() -> None:
    """Helm takes a default away where a file has the name alone."""
    needed = [[name] for name in SCHEMA["required"]]
    for name, schema in SCHEMA["properties"].items():
        needed += [[name, inner] for inner in schema.get("required", ())]
    for path in needed:
        values: Any = None
        for name in reversed(path):
            values = {name: values}
        with pytest.raises(helm_python.HelmError, match=path[-1]):
            rendered(values)
