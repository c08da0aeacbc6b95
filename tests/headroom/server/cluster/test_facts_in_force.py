"""Facts of the cluster in `headroom serve`: settings override them with a warning, changes are taken once, and they are
read when brokers come, go or move."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from exporters import self_metrics as catalogue
from exporters.model import CONTROLLER, StoredFacts
from exporters.spool.writer import SpoolFull
from headroom.config.quotas import QuotaConfig
from headroom.server.cluster.cluster_metadata import BrokerRefresh
from headroom.server.cluster.facts_in_force import FactsInForce
from quota_metrics.cluster.facts import BrokerFacts, ClusterFacts
from quota_metrics.config.entities import entity_of
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.cluster import Cluster, Node
from quota_metrics.kafka.errors import BrokerUnreachableError
from quota_metrics.windows import QuotaWindow
from tests.kit.grpc_servers import in_loop


def facts(*window_nums: int, **configs: str) -> ClusterFacts:
    """Brokers 1, 2, ... with these quota.window.num."""
    more = {name.replace("_", "."): value for name, value in configs.items()}
    return ClusterFacts(
        "id",
        tuple(
            BrokerFacts(
                broker_id, (4, 3), {"quota.window.num": str(num), "quota.window.size.seconds": "1", **more}, True
            )
            for broker_id, num in enumerate(window_nums, start=1)
        ),
        (4, 3),
    )


def after(settings: dict[str, Any], *read: ClusterFacts) -> tuple[FactsInForce, list[StoredFacts]]:
    """The facts after as many steps, and the stored rows. Then the cluster is away."""
    coming = iter(read)
    rows: list[StoredFacts] = []

    async def next_facts() -> ClusterFacts:
        facts = next(coming, None)
        if facts is None:
            raise BrokerUnreachableError("gone")
        return facts

    one = FactsInForce(QuotaConfig(**settings), "c", next_facts, rows.extend)
    for _ in read:
        asyncio.run(one.step())
    return one, rows


def windows(one: FactsInForce, broker_ids: Sequence[int] = (1, 2)) -> list[tuple[int, int]]:
    return [(window.samples, window.window_ms) for window in map(one.window_at, broker_ids)]


def test_before_the_first_reading_kafkas_defaults_are_in_force() -> None:
    one, _ = after({})
    assert one.window_at(1) == QuotaWindow()
    assert one.document()["read_at_ms"] is None


def test_brokers_windows_are_in_force_and_followed() -> None:
    one, rows = after({}, facts(31, 11), facts(31, 11), facts(21, 11))
    assert windows(one) == [(21, 1000), (11, 1000)]
    assert [(row.broker_id, row.quota_window_num) for row in rows] == [(1, 31), (2, 11), (1, 21)]
    assert list(one.differences()) == []


@pytest.mark.parametrize(("settings", "may_be"), [({}, True), ({"window_num": 11}, False)])
def test_window_of_brokers_that_have_none_is_assumed(settings: dict[str, int], may_be: bool) -> None:
    """Also while they do not answer, and of a broker that never did. A broker that refused to tell may have one, and
    the settings may say that it has."""
    none, silent = BrokerFacts(1, lacks_window=True), BrokerFacts(1)
    for read, is_assumed in (
        ([ClusterFacts("id", (none, BrokerFacts(2)))], True),
        ([ClusterFacts("id", (none,)), ClusterFacts("id", (silent,))], True),
        ([ClusterFacts("id", (none,)), facts(11)], False),
        ([ClusterFacts("id", (silent,))], False),
    ):
        one, _ = after(settings, *read)
        assert {one.window_at(broker_id).is_assumed for broker_id in (1, 2)} == {is_assumed and may_be}


def test_failed_reading_keeps_the_facts() -> None:
    one, rows = after({}, facts(31))
    with pytest.raises(BrokerUnreachableError):
        asyncio.run(one.step())
    assert windows(one, [1]) == [(31, 1000)]
    assert len(rows) == 1


def test_rows_that_could_not_be_stored_are_stored_later() -> None:
    rows: list[StoredFacts] = []
    full = [True]

    async def read() -> ClusterFacts:
        return facts(31)

    def store(coming: Sequence[StoredFacts]) -> None:
        if full.pop() if full else False:
            raise SpoolFull("full")
        rows.extend(coming)

    one = FactsInForce(QuotaConfig(), "c", read, store)
    with pytest.raises(SpoolFull):
        asyncio.run(one.step())
    assert windows(one, [1]) == [(31, 1000)]
    for _ in range(2):
        asyncio.run(one.step())
    assert [row.quota_window_num for row in rows] == [31]


def test_controller_has_a_window_of_its_own_which_settings_do_not_override() -> None:
    mutations = {"controller_quota_window_num": "5", "controller_quota_window_size_seconds": "2"}
    one, _ = after({"window_num": 21}, facts(31, **mutations))
    assert windows(one, [1, CONTROLLER]) == [(21, 1000), (5, 2000)]
    assert one.callback_at(CONTROLLER) == ""
    one, _ = after({}, facts(31, client_quota_callback_class="x.Y"))
    assert (one.window_at(CONTROLLER), one.callback_at(CONTROLLER)) == (QuotaWindow(), "x.Y")


def test_partitions_follow_although_no_fact_changed_and_outlast_a_failure() -> None:
    readings = [replace(facts(31), partitions=partitions) for partitions in ({"a": 1}, {"a": 2}, {})]
    one, rows = after({}, *readings)
    assert (one.facts.partitions, len(rows)) == ({"a": 2}, 1)


def test_settings_override_with_a_warning_per_broker() -> None:
    one, rows = after({"window_num": 11}, facts(31, 11))
    assert windows(one) == [(11, 1000), (11, 1000)]
    assert [(row.broker_id, row.quota_window_num, row.quota_window_size_ms) for row in rows] == [
        (1, 11, 1000),  # jobs and what-if compute with what the meter has
        (2, 11, 1000),
    ]
    (difference,) = one.differences()
    assert difference.startswith("quotas.window_num and quotas.window_size_ms say 11 x 1000 ms, but broker 1 has 31 x")
    assert one.document()["remarks"][-1] == difference


def test_changed_settings_are_stored_with_the_next_step() -> None:
    rows: list[StoredFacts] = []

    async def read() -> ClusterFacts:
        return facts(31)

    one = FactsInForce(QuotaConfig(), "c", read, rows.extend)
    asyncio.run(one.step())
    one.follow(QuotaConfig(window_num=21, window_size_ms=500))
    for _ in range(2):
        asyncio.run(one.step())
    assert [(row.quota_window_num, row.quota_window_size_ms) for row in rows] == [(31, 1000), (21, 500)]


def test_callback_port_without_callback_class_is_a_difference() -> None:
    settings = {"callback": "a:b", "metrics": {"enabled": True}}
    (difference,) = after(settings, facts(11))[0].differences()
    assert "no broker is known to have a client.quota.callback.class" in difference
    assert list(after(settings, facts(11, client_quota_callback_class="x.Y"))[0].differences()) == []


def test_quotas_of_other_vendors_are_remarked() -> None:
    one, _ = after({}, facts(11))
    rule = {"producer_byte_rate": 1.0}
    kafkas: list[dict[str, str | None]] = [
        {"user": "alice"},
        {"client-id": None},
        {"user": None, "client-id": "a"},
        {"ip": "10.0.0.1"},
    ]
    foreign: list[dict[str, str | None]] = [{"client-id-prefix": "app-"}]
    one.follow_rules({entity_of(names): rule for names in kafkas + foreign})
    remark = "the quota of client-id-prefix=app- is not understood, and may apply"
    assert [line.partition(":")[0] for line in one.document()["remarks"]] == [remark]
    assert one.document()["not_understood"] == ["client-id-prefix=app-"]
    one.follow_rules({entity_of(names): rule for names in kafkas})
    assert one.document()["remarks"] == []


def test_quota_of_a_name_that_reads_as_the_default_is_remarked() -> None:
    one, _ = after({}, facts(11))
    one.follow_rules({entity_of({"user": name}): {"producer_byte_rate": 1.0} for name in (None, "alice", "<default>")})
    (remark,) = one.document()["remarks"]
    assert remark.startswith("the quota of {user=%3Cdefault%3E} holds, but quota_limits has no row of it")
    assert one.document()["not_understood"] == []


def test_info_metrics() -> None:
    readings = after({}, facts(31, client_quota_callback_class="x.Y"))[0].readings()
    assert readings[catalogue.CLUSTER_INFO] == {("c", "4.3", "4.3"): 1.0}
    assert readings[catalogue.BROKER_INFO] == {("c", "1", "4.3", "31", "1", "x.Y", ""): 1.0}
    assert (readings[catalogue.FACTS_UNREAD], readings[catalogue.CLUSTER_REMARKS]) == (0, 2)


def test_stale_throttles_are_a_metric() -> None:
    of_both = {"leader_replication_throttled_rate": "1", "follower_replication_throttled_rate": "1"}
    topics = {"t": {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}}
    for reassigning, expected in ((0, 4), (3, 0), (None, 0)):
        one, _ = after({}, replace(facts(11, **of_both), reassigning=reassigning, throttled_replicas=topics))
        assert one.readings()[catalogue.STALE_THROTTLES] == expected


ONE, TWO = Node(1, "a", 9092), Node(2, "b", 9092)


class Described:
    """A cluster with the next of these nodes at each question."""

    def __init__(self, *nodes: tuple[Node, ...]) -> None:
        self._coming = list(nodes)

    async def describe_cluster(self) -> Cluster:
        return Cluster("c", self._coming.pop(0), 1)


@in_loop
async def test_facts_are_read_when_brokers_change() -> None:
    moved = ONE._replace(port=9093)
    readings = [(ONE, TWO), (TWO, ONE), (TWO,), (ONE, TWO), (ONE, TWO), (moved, TWO)]
    seen = []
    changed = 0

    async def note() -> None:
        nonlocal changed
        changed += 1

    refresh = BrokerRefresh(cast(KafkaAdmin, Described(*readings)), tuple, note)
    for _ in readings:
        await refresh.step()
        await asyncio.sleep(0)  # it runs beside
        seen.append(changed)
    assert seen == [0, 0, 1, 2, 2, 3]
