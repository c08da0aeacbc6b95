"""Client-metrics resources and the requests that alter them."""

from __future__ import annotations

from typing import Any

from telemetry.subscriptions import config_admin as administration
from telemetry.subscriptions.config_admin import alter, describe, list_resources
from telemetry.subscriptions.subscription import MATCH_KEYS
from telemetry.wire.apis import INCREMENTAL_ALTER_CONFIGS
from tests.oracle.administration_oracle import CLIENT_METRICS, decoded

TOPIC, BROKER, BROKER_LOGGER, GROUP, NO_TYPE = 2, 4, 8, 32, 3
HERE = "administration-here"  # an existing resource
RESOURCES = {HERE: {"metrics": " x , y,x", "interval.ms": "+5000"}}

Keys = list[tuple[str, int, str | None]]
Answered = list[tuple[int, str | None]]


def here(*keys: tuple[str, int, str | None], name: str = HERE) -> list[tuple[int, str, Keys]]:
    return [(CLIENT_METRICS, name, list(keys))]


def results(api_key: int, version: int, body: bytes) -> Answered:
    return [(int(result.error_code), result.error_message) for result in decoded(api_key, version, body).responses]


def altered(body: bytes, version: int = 1, resources: Any = RESOURCES) -> administration.Alteration:
    return alter(INCREMENTAL_ALTER_CONFIGS, version, body, resources, MATCH_KEYS)


def answered(api_key: int, body: bytes) -> bytes:
    """In the newest version of each API."""
    match api_key:
        case 32:
            return describe(4, body, RESOURCES)
        case 74:
            return list_resources(1, body, RESOURCES)
        case _:
            return alter(api_key, 1 if api_key == 44 else 2, body, RESOURCES, MATCH_KEYS).answer()
