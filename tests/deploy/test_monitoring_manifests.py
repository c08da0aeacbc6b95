"""ServiceMonitor and PrometheusRule of the chart, validated against the Prometheus operator's own definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.kit.helm_chart import EVERYTHING, merged, rendered

DEFINITIONS = Path(__file__).with_name("crds")
PLURAL = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}


def closed(schema: Any) -> Any:
    """The schema with fields that it does not know refused, as `kubectl apply --validate=strict` does."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: closed(part) for name, part in schema.items()}
    opened = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & result.keys()
    if isinstance(result.get("properties"), dict) and result.get("type") == "object" and not opened:
        result["additionalProperties"] = False
    return result


def definition(kind: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((DEFINITIONS / f"{PLURAL[kind]}.json").read_text())
    schema = closed(read["schema"])
    schema["properties"]["apiVersion"]["const"] = f"{read['group']}/{read['version']}"
    schema["properties"]["kind"]["const"] = read["kind"]
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return dict(schema)


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    return {kind: manifest for (kind, _), manifest in rendered(EVERYTHING).items() if kind in PLURAL}


@pytest.mark.parametrize("kind", PLURAL)
def test_manifest_matches_the_operator_definition(manifests: dict[str, Any], kind: str) -> None:
    jsonschema.Draft202012Validator(definition(kind)).validate(manifests[kind])


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("ServiceMonitor", {"endpoints": [{"port": "http", "interval": "15"}]}),
        ("ServiceMonitor", {"endpoints": [{"port": "http", "every": "15s"}]}),
        ("ServiceMonitor", {"selector": {"app": "headroom"}}),
        ("PrometheusRule", {"groups": [{"name": "headroom", "rules": [{"alert": "A"}]}]}),
        ("PrometheusRule", {"groups": [{"name": "headroom", "interval": "often"}]}),
    ],
)
def test_invalid_field_is_refused(manifests: dict[str, Any], kind: str, spec: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(definition(kind)).validate(merged(manifests[kind], {"spec": spec}))
