"""The quotas of clients as columns of quota_usage, the function of quotas.callback, and quotas on addresses."""

import math
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporters.model import UsageSample
from quota_metrics.config.entities import Rules, entity_of
from quota_metrics.config.resolution import Tags
from quota_metrics.measure.connection_quotas import ADMITTED, AddressLimits, ConnectionQuotas, address_limits
from quota_metrics.measure.quota_in_force import CallbackError, Quota, QuotaCallback, QuotaInForce, QuotasInForce
from quota_metrics.windows import UNLIMITED

PRODUCER = "producer_byte_rate"
ALICE = entity_of({"user": "alice a"})


def quotas(rules: Rules) -> QuotasInForce:
    in_force = QuotasInForce()
    in_force.configure(rules)
    return in_force


def test_new_configuration_applies_immediately() -> None:
    in_force = quotas({ALICE: {PRODUCER: 10.0}})
    assert in_force.of_client(PRODUCER, "alice a", "x", 1) == QuotaInForce(10.0, True, "user=alice a", "alice a", "")
    in_force.configure({entity_of({"client-id": None}): {PRODUCER: 7.0}})
    assert in_force.of_client(PRODUCER, "alice a", "x", 1) == QuotaInForce(7.0, True, "client-id=<default>", "", "x")
    in_force.configure({})
    assert in_force.of_client(PRODUCER, "alice a", "x", 1) == QuotaInForce(None, True, "", "", "x")


@pytest.mark.parametrize("value", [UNLIMITED, math.inf, math.nan, 2e15])
def test_value_that_never_throttles_is_no_limit_but_keeps_its_rule(value: float) -> None:
    in_force = quotas({ALICE: {PRODUCER: value}}).of_client(PRODUCER, "alice a", "x", 1)
    assert in_force == QuotaInForce(None, True, "user=alice a", "alice a", "")


def test_limit_is_unknown_before_quotas_are_read() -> None:
    assert QuotasInForce().of_client(PRODUCER, "u", "c", 1) == QuotaInForce(None, False, "", "u", "c")
    assert not quotas({}).of_client("connection_creation_rate", "u", "c", 1).limit_known


def quota_of(row: UsageSample) -> QuotaInForce:
    assert row.bucket_user is not None
    assert row.bucket_client_id is not None
    return QuotaInForce(row.limit, row.limit_known, row.matched_entity, row.bucket_user, row.bucket_client_id)


def test_sensor_has_the_quota_of_its_tags() -> None:
    row = UsageSample("c", PRODUCER, 0, "alice a", "", "", 1, 0, 5.0, 0.0, 0, "jmx")
    in_force = quotas({ALICE: {PRODUCER: 10.0}})
    assert quota_of(in_force.of_sensor(row)) == QuotaInForce(10.0, True, "user=alice a", "alice a", "")
    assert quota_of(in_force.of_sensor(row._replace(user="", client_id="x"))) == QuotaInForce(None, True, "", "", "x")
    assert QuotasInForce().of_sensor(row) == row


def test_callback_overrides_the_configuration_and_none_leaves_it() -> None:
    def of_own_users(_quota_key: str, user: str, _client_id: str, broker_id: int) -> tuple[Tags, float] | None:
        return ({"user": user, "client-id": ""}, 3.0 * broker_id) if user == "alice a" else None

    in_force = QuotasInForce(QuotaCallback(of_own_users), lambda _broker_id: "a.Class")
    in_force.configure({entity_of({"user": None}): {PRODUCER: 10.0}})
    assert in_force.of_client(PRODUCER, "alice a", "x", 1) == QuotaInForce(3.0, True, "", "alice a", "")
    assert in_force.of_client(PRODUCER, "bob", "x", 1) == QuotaInForce(10.0, True, "user=<default>", "bob", "")
    row = UsageSample("c", PRODUCER, 0, "alice a", "", "", 2, 0, 5.0, 0.0, 0, "jmx")
    assert in_force.of_sensor(row).limit == 6.0
    assert in_force.of_sensor(row._replace(client_id="x")).limit is None  # a sensor that the callback has no tags of
    assert in_force.of_sensor(row._replace(user="bob")).limit == 10.0


def test_clients_share_a_callbacks_limit_by_all_its_tags() -> None:
    """As in GroupedUserQuotaCallback and Strimzi's StaticQuotaCallback, whose tags are not Kafka's."""
    groups = {
        "alice": {"group": "a"},
        "amy": {"group": "a"},
        "bob": {"group": "b"},
        "eve": {"user": "eve", "group": "b"},
    }
    in_force = QuotasInForce(QuotaCallback(lambda _key, user, _client_id, _broker: (groups[user], 5.0)))
    in_force.configure({})
    buckets = [in_force.of_client(PRODUCER, user, "x", 1)[3:5] for user in groups]
    assert buckets == [("group=a", ""), ("group=a", ""), ("group=b", ""), ("group=b;eve", "")]


def test_rule_of_another_vendors_entity_makes_the_limit_unknown() -> None:
    prefix = entity_of({"client-id-prefix": "app-"})
    in_force = quotas({entity_of({"user": "alice"}): {PRODUCER: 7.0}, prefix: {PRODUCER: 5.0}})
    of_alice = in_force.of_client(PRODUCER, "alice", "app-1", 1)
    assert (of_alice.limit, of_alice.decided_by) == (7.0, "client-id-prefix=app- (not understood)")
    assert in_force.of_client("consumer_byte_rate", "alice", "app-1", 1).decided_by == ""
    assert in_force.of_client(PRODUCER, "alice", "batch", 1).decided_by == ""
    row = UsageSample("c", PRODUCER, 0, "alice", "", "", 1, 0, 5.0, 0.0, 0, "jmx")
    assert in_force.of_sensor(row).decided_by == "client-id-prefix=app- (not understood)"
    assert in_force.of_sensor(row._replace(quota_key="consumer_byte_rate")).decided_by == ""


def test_class_of_a_broker_decides() -> None:
    in_force = QuotasInForce(callback_at=lambda broker_id: {1: "com.example.Quotas"}[broker_id])
    in_force.configure({entity_of({"user": "alice"}): {PRODUCER: 7.0}})
    assert in_force.of_client(PRODUCER, "alice", "app", 1).decided_by == "com.example.Quotas"


PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
DOCUMENT = Path(__file__).parents[3] / "docs" / "quotas.md"


def test_documented_example_gives_what_kafkas_example_gives() -> None:
    """CustomQuotaCallbackTest: a group's limit scaled by the partitions of its topics that the broker leads."""
    documented = re.search(r"```python\n(# our_quotas.py.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert documented
    example: dict[str, Any] = {}
    exec(documented[1], example)
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


NOW_MS = 1_700_000_000_000


def admitted(quotas: ConnectionQuotas, address: str, times: int) -> int:
    return sum(quotas.connect(address, 1, NOW_MS) == ADMITTED for _ in range(times))


def test_addresses_of_one_ipv6_network_share_a_window_above_256() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0, rate_of={"2001:db8::ffff": 1.0}))
    assert [admitted(quotas, f"2001:db8::{n:x}", 11) for n in range(256)] == [10] * 256
    assert sum(admitted(quotas, f"2001:db8::{n:x}", 11) for n in range(256, 600)) == 10
    assert admitted(quotas, "2001:db8::ffff", 11) == 10  # a rule of its own
    assert admitted(quotas, "2001:db8:0:1::1", 11) == 10  # another network
    assert admitted(quotas, "192.0.2.1", 11) == 10


def test_windows_of_a_network_are_forgotten_with_their_addresses() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0))
    for n in range(300):
        quotas.connect(f"2001:db8::{n:x}", 1, NOW_MS)
    quotas.uses(NOW_MS + 4_000_000)
    later = NOW_MS + 4_000_001
    for n in range(256):  # each has a window again
        assert quotas.connect(f"2001:db8::{n:x}", 1, later) == ADMITTED
    assert len(quotas.uses(later)) == 256


def test_any_number_of_addresses_is_admitted_and_a_reading_has_the_thousand_most_urgent() -> None:
    quotas = ConnectionQuotas(lambda _: AddressLimits(rate=1.0))
    admitted(quotas, "192.0.2.1", 5)
    admitted(quotas, "192.0.2.2", 20)
    for n in range(21_000):
        assert quotas.connect(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1, NOW_MS) == ADMITTED
    uses = quotas.uses(NOW_MS)
    assert [(use.address, use.throttled) for use in uses[:2]] == [("192.0.2.2", 10), ("192.0.2.1", 0)]
    assert (len(uses), quotas.left_out) == (1_000, 19_000)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("::ffff:192.0.2.1:3", {"192.0.2.1": 3}),
        ("[2001:db8::1]:3, 10.0.0.1:4", {"2001:db8::1": 3, "10.0.0.1": 4}),
        ("app.example:5", {"192.0.2.7": 5, "2001:db8::7": 5}),
        ("gone.example:5,:1,x:,y:z,", {}),
    ],
)
def test_overrides_name_addresses_in_any_spelling_and_hosts(overrides: str, expected: dict[str, int]) -> None:
    hosts = {"app.example": ["192.0.2.7", "2001:db8:0::7"]}
    assert address_limits({"max.connections.per.ip.overrides": overrides}, {}, hosts).most_of == expected


def test_rates_of_host_names_and_short_forms_apply_to_their_addresses() -> None:
    hosts = {"app.example": ["192.0.2.7", "2001:db8:0::7"]}
    rates = {"app.example": 5.0, "10.1": 6.0, "gone.example": 7.0, None: 8.0000001}
    limits = address_limits({}, rates, hosts)
    assert limits.rate_of == {"192.0.2.7": 5.0, "2001:db8::7": 5.0, "10.0.0.1": 6.0}
    assert limits.rate == 8.0  # a broker takes the whole number
