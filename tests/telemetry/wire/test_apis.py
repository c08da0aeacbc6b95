"""The table of APIs compared with the message definitions that kio generated from Kafka's own files."""

import dataclasses
import importlib
import pkgutil
from typing import Any

import kio.schema
import pytest

from telemetry.wire.apis import APIS, FETCH


def schemas() -> dict[int, list[tuple[int, Any]]]:
    found: dict[int, list[tuple[int, Any]]] = {}
    for package in pkgutil.iter_modules(kio.schema.__path__):
        module = importlib.import_module(f"kio.schema.{package.name}")
        for version in pkgutil.iter_modules(getattr(module, "__path__", [])):
            try:
                response = importlib.import_module(f"kio.schema.{package.name}.{version.name}.response")
            except ModuleNotFoundError:
                continue
            for entity in vars(response).values():
                if getattr(getattr(entity, "__type__", None), "name", "") == "response":
                    found.setdefault(int(entity.__api_key__), []).append((int(entity.__version__), entity))
    return found


SCHEMAS = schemas()


def test_each_api_of_the_schema_is_known() -> None:
    assert set(SCHEMAS) == set(APIS)


@pytest.mark.parametrize("key", sorted(SCHEMAS))
def test_versions_headers_and_place_of_the_throttle_time(key: int) -> None:
    api = APIS[key]
    for version, entity in SCHEMAS[key]:
        assert api.flexible(version) == entity.__flexible__
        first_field = dataclasses.fields(entity)[0].name if dataclasses.fields(entity) else ""
        assert api.throttle_first(version) == (first_field == "throttle_time"), (api.name, version)
    newest = max(version for version, _ in SCHEMAS[key])
    assert api.max_version == (15 if key == FETCH else newest)
