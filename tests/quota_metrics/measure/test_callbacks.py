"""The function of `quotas.callback`: the documented example, and functions that fail."""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quota_metrics.measure.quota_in_force import CallbackError, Quota, QuotaCallback
from quota_metrics.windows import UNLIMITED

PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
DOCUMENT = Path(__file__).parents[3] / "docs" / "quotas.md"


@pytest.fixture
def example() -> dict[str, Any]:
    """The module that the documentation shows."""
    example = re.search(r"```python\n(# our_quotas.py.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert example
    module: dict[str, Any] = {}
    exec(example[1], module)
    return module


def test_documented_example_gives_what_kafkas_example_gives(example: dict[str, Any]) -> None:
    """CustomQuotaCallbackTest: a group's limit scaled by the partitions of its topics that the broker leads."""
    callback = QuotaCallback(example["quota"])

    def quota(quota_key: str, user: str, broker_id: int = 1) -> Quota:
        answer = callback.quota(quota_key, user, "c", broker_id)
        assert answer
        return answer

    def limits(broker_id: int = 1, group: str = "group0") -> tuple[float, ...]:
        return tuple(quota(key, f"{group}_user1", broker_id).limit for key in (PRODUCER, CONSUMER))

    group0, default = (example["LIMITS"].setdefault(name, {}) for name in ("group0", "_"))
    default |= {PRODUCER: 2e9, CONSUMER: 1e9, REQUEST: UNLIMITED}
    group0 |= {PRODUCER: 9000.0, CONSUMER: 3000.0}
    example["LED"]["group0"] = {1: 1}
    assert limits() == (9000.0, 3000.0)
    group0.clear()
    assert limits() == (2e9, 1e9)
    default |= {PRODUCER: 8000.0, CONSUMER: 2500.0}
    assert limits() == (8000.0, 2500.0)
    group0 |= {PRODUCER: 800_000.0, CONSUMER: 250_000.0, REQUEST: 300.0}
    example["LED"]["group0"] = {1: 1, 2: 99}
    assert limits() == (8000.0, 2500.0)
    assert limits(broker_id=3) == (8000.0, 2500.0)  # leads none: the share of one
    assert quota(REQUEST, "group0_user1").limit == 300.0
    example["LED"]["group0"] = {1: 1}
    assert limits() == (800_000.0, 250_000.0)
    assert quota(PRODUCER, "group0_user1") == quota(PRODUCER, "group0_user2")
    assert callback.quota(PRODUCER, "alice", "c", 1) is None  # Kafka's own rules


@pytest.fixture
def foreign() -> Iterator[types.ModuleType]:
    """A third-party module."""
    module = types.ModuleType("foreign_callbacks")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


PATHS = ["", "nowhere:quota", "foreign_callbacks", "foreign_callbacks:absent", "a.b:c:d", "foreign_callbacks:Class"]


@pytest.mark.parametrize("path", [*PATHS, "foreign_callbacks:number"])
def test_path_without_a_function_raises_callback_error(foreign: types.ModuleType, path: str) -> None:
    foreign.__dict__.update(Class=type("Class", (), {}), number=1)
    with pytest.raises(CallbackError, match="cannot be used"):
        QuotaCallback.load(path)


def test_function_is_loaded_by_path(foreign: types.ModuleType) -> None:
    foreign.__dict__["quota"] = lambda *client: ({"group": "g"}, 1.0)
    assert QuotaCallback.load("foreign_callbacks:quota").quota(PRODUCER, "u", "c", 1) == ({"group": "g"}, 1.0)


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("x"),
        "tags",
        7,
        ({"user": 1}, 1.0),
        ("user", 1.0),
        ({}, "10"),
        ({}, True),
        ({}, 10**400),
        ({}, math.nan),
        ({}, 1, 2),
    ],
)
def test_failing_callback_is_contained_and_counted(answer: Any) -> None:
    def callback(*_client: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    contained = QuotaCallback(callback)
    assert contained.quota(PRODUCER, "alice", "c", 1) == Quota({}, UNLIMITED)
    assert contained.faults == 1
    assert contained.last_fault.startswith("the quota callback ")
