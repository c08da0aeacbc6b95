"""quota_metrics/kafka/client_metrics.py reads the keys that are set, from brokers of each version."""

from __future__ import annotations

from typing import Any

import pytest

from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from quota_metrics.kafka.errors import RefusedError
from tests.quota_metrics.kafka.fake_broker import API_VERSIONS, FakeBroker, asking, in_any_version, spans

LIST, DESCRIBE_CONFIGS = 74, 32
SET, DEFAULT = 7, 5  # ConfigSource of CLIENT_METRICS_CONFIG, DEFAULT_CONFIG
REFUSED = {"error_code": 31}


def read(
    resources: dict[str, dict[str, tuple[str, int]]], *, listed: Any = None, described: Any = None, newest: int = 4
) -> tuple[dict[str, dict[str, str]], list[int]]:
    """What is read of resources, name -> key -> (value, source), and which APIs were asked."""
    results = [
        {
            "resource_name": name,
            "configs": [
                {"name": key, "value": value, "config_source": source} for key, (value, source) in keys.items()
            ],
            **(described or {}),
        }
        for name, keys in resources.items()
    ]
    names = [{"resource_name": name} for name in resources]
    answers = {
        API_VERSIONS: spans({3: (0, 13), LIST: (0, 1), DESCRIBE_CONFIGS: (1, newest)}),
        LIST: in_any_version({"config_resources": names, **(listed or {})}),
        DESCRIBE_CONFIGS: in_any_version({"results": results}),
    }

    async def ask(admin: KafkaAdmin, fake: FakeBroker) -> Any:
        return await read_subscriptions(admin), fake.asked

    subscriptions, asked = asking(answers, ask)
    return subscriptions, asked


@pytest.mark.parametrize("newest", [1, 2, 3, 4])
def test_only_explicitly_set_keys_are_read(newest: int) -> None:
    resources = {
        "one": {"metrics": ("a,b", SET), "interval.ms": ("300000", DEFAULT), "match": ("", DEFAULT)},
        "two": {"metrics": ("", SET), "interval.ms": ("100", SET)},
        "gone": {"metrics": ("", DEFAULT)},  # deleted after the listing
    }
    expected = {"one": {"metrics": "a,b"}, "two": {"metrics": "", "interval.ms": "100"}}
    assert read(resources, newest=newest)[0] == expected


def test_empty_listing_sends_no_describe() -> None:
    assert read({}) == ({}, [API_VERSIONS, LIST])


@pytest.mark.parametrize("refused", [{"listed": REFUSED}, {"described": REFUSED}])
def test_error_code_raises_refused_error(refused: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="31"):
        read({"one": {"metrics": ("a", SET)}}, **refused)
