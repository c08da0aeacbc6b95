"""Which node of a cluster receives a query."""

from __future__ import annotations

import pytest

from exporters.clickhouse.connection import Endpoint
from exporters.clickhouse.reader import Nodes, UnreachableError, read_rows
from headroom.demo.kit.processes import LOOPBACK, free_ports
from tests.kit.clickhouse import RunningClickHouse

FIRST, SECOND = Endpoint("http", "first", 8123), Endpoint("http", "second", 8123)


def test_unreachable_node_fails_over_and_the_next_node_stays_current() -> None:
    away, asked = {FIRST}, []

    def question(node: Endpoint) -> str:
        asked.append(node)
        if node in away:
            raise UnreachableError(node.host)
        return node.host

    nodes = Nodes(FIRST, SECOND)
    assert [nodes.ask(question) for _ in range(2)] == ["second", "second"]
    assert asked == [FIRST, SECOND, SECOND]
    assert nodes.current == SECOND
    away.update((FIRST, SECOND))
    with pytest.raises(UnreachableError):
        nodes.ask(question)
    assert asked[3:] == [SECOND, FIRST]
    away.clear()
    assert nodes.ask(question) == "second"


def test_refused_query_does_not_fail_over() -> None:
    def refuse(node: Endpoint) -> str:
        raise ConnectionError(f"{node} refused a query")

    nodes = Nodes(FIRST, SECOND)
    with pytest.raises(ConnectionError, match="first"):
        nodes.ask(refuse)
    assert nodes.current == FIRST


@pytest.mark.clickhouse
def test_rows_are_read_from_the_reachable_node(clickhouse: RunningClickHouse) -> None:
    (port,) = free_ports(1)
    there = Endpoint.parse(clickhouse.url)
    nodes = Nodes(Endpoint("http", LOOPBACK, port), there)
    assert nodes.ask(lambda node: read_rows(node, "SELECT 1 AS one")) == [{"one": 1}]
    assert nodes.current == there
    with pytest.raises(ConnectionError, match="refused a query"):
        read_rows(there, "SELECT nothing")
