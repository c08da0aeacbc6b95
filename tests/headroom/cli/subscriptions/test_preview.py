"""`headroom subscriptions preview` over a store: which clients would match, and the cost."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from exporters.clickhouse.client import ClickHouse
from exporters.clickhouse.connection import Endpoint
from headroom.cli.subscriptions import app
from headroom.subscription_preview import JAVA_POINTS, LIBRDKAFKA_POINTS, preview_of
from telemetry.subscriptions.java.hash import uuid_text
from telemetry.subscriptions.subscription import EXTRA_MATCH_KEYS, is_match, parse_subscription
from tests.kit.clickhouse import QueriedStore, RunningClickHouse, running_clickhouse
from tests.kit.gateways import RunningSink

pytestmark = pytest.mark.clickhouse

HOSTILE = "app-\x1b[2J[bold]"
PRODUCER, CONSUMER = "org.apache.kafka.producer.", "org.apache.kafka.consumer."

COMMON = {"client_source_address": "10.0.0.1", "principal": "alice", "cluster": "c", "listener": "x",
          "client_source_port": "1"}  # fmt: skip
# client id, software, version, minutes since last seen, terminated, series by name
Seen = tuple[str, str, str, int, bool, list[str]]
CLIENTS: list[Seen] = [
    ("orders", "apache-kafka-java", "4.3.1", 1, False, [f"{PRODUCER}a", f"{PRODUCER}b", f"{CONSUMER}a"]),
    ("orders-2", "apache-kafka-java", "3.9.1", 1, False, []),
    (HOSTILE, "confluent-kafka-python", "2.16.1-rdkafka-2.16.0", 90, False, []),
    ("gone", "apache-kafka-java", "4.3.1", 1, True, [f"{PRODUCER}a"]),
]


def _fill(store: QueriedStore, clients: list[Seen]) -> None:
    for number, (client_id, software, version, minutes, terminated, metrics) in enumerate(clients):
        identity = {"id": f"00000000-0000-4000-8000-{number:012}", "client": client_id, "minutes": minutes}
        columns = "cluster, principal, client_id, client_instance_id, source_address, last_seen"
        values = "'c', 'alice', {client:String}, {id:String}, '10.0.0.1', now64(3) - INTERVAL {minutes:UInt32} MINUTE"
        store.query(
            f"INSERT INTO headroom.client_instances ({columns}, software_name, software_version, terminated, points)"
            f" SELECT {values}, {{software:String}}, {{version:String}}, {{terminated:UInt8}}, {{points:UInt64}}",
            {
                **identity,
                "software": software,
                "version": version,
                "terminated": int(terminated),
                "points": len(metrics),
            },
        )
        for metric in [*metrics, *metrics]:  # repeated rows of a series count once
            store.query(
                f"INSERT INTO headroom.series ({columns}, metric, series_id)"
                f" SELECT {values}, {{metric:String}}, cityHash64({{client:String}}, {{metric:String}})",
                {**identity, "metric": metric},
            )


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as running:
        _fill(running.store, CLIENTS)
        yield running


def test_preview_reads_from_the_next_node_when_one_is_away(clickhouse: RunningClickHouse) -> None:
    wanted = parse_subscription("preview", {"metrics": "*"})
    nodes = ClickHouse((Endpoint("http", "127.0.0.1", 1), clickhouse.reader))
    found = preview_of(wanted, nodes, int(time.time() - 3600) * 1000)
    assert [client.client_id for client in found.clients] == ["orders", "orders-2"]
    assert nodes.current == clickhouse.reader


@pytest.mark.parametrize(
    ("match", "matching"),
    [
        ("client_id=.*-2", ["orders-2"]),
        ("client_id=orders", ["orders"]),  # all of it, not a part
        ("client_id=ORDERS|(?:orders)-2", ["orders-2"]),
        ("client_id=.*\\[bold\\]", [HOSTILE]),
        ("client_instance_id=AAAAAAAAQACAAAAAAAAAAQ", ["orders-2"]),
        ("client_source_address=10\\.0\\.0\\.1,client_software_version=4\\..*", ["orders"]),
        ("principal=bob", []),
        ("client_software_name=confluent.*", [HOSTILE]),
        ("cluster=c,listener=x,client_source_port=1", ["orders", "orders-2", HOSTILE]),  # neither is stored
    ],
)
def test_store_matches_clients_as_the_server_does(
    clickhouse: RunningClickHouse, match: str, matching: list[str]
) -> None:
    wanted = parse_subscription("preview", {"match": match}, EXTRA_MATCH_KEYS)
    found = preview_of(wanted, ClickHouse((clickhouse.reader,)), 0, shown=2)
    assert (found.known, found.matching) == (3, len(matching))
    assert {client.client_id for client in found.clients} <= set(matching)
    assert len(found.clients) == min(len(matching), 2)
    instances = (uuid_text(UUID(int=(4 << 76) + (8 << 60) + number).bytes) for number, _ in enumerate(CLIENTS))
    subjects = [
        {
            "client_id": row[0],
            "client_instance_id": instance,
            "client_software_name": row[1],
            "client_software_version": row[2],
            **COMMON,
        }
        for row, instance in zip(CLIENTS, instances, strict=True)
        if not row[4]
    ]
    assert [subject["client_id"] for subject in subjects if is_match(wanted, subject)] == matching


def preview(clickhouse: RunningClickHouse, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["preview", "--url", clickhouse.url, *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def found(clickhouse: RunningClickHouse, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(preview(clickhouse, *arguments, "--output", "json"))
    return document


def points(document: dict[str, Any]) -> dict[str, int]:
    return {client["client_id"]: client["points"] for client in document["clients"]}


def test_points_are_measured_or_estimated_per_client(clickhouse: RunningClickHouse) -> None:
    document = found(clickhouse, "--metrics", PRODUCER, "--interval", "1000")
    assert points(document) == {"orders": 2, "orders-2": JAVA_POINTS, HOSTILE: LIBRDKAFKA_POINTS}
    assert document["points_per_second"] == 2 + JAVA_POINTS + LIBRDKAFKA_POINTS
    assert (document["known"], document["matching"]) == (3, 3)
    assert points(found(clickhouse, "--metrics", "*"))["orders"] == 3
    assert points(found(clickhouse, "--interval", "1000")) == {
        "orders": 0,
        "orders-2": 0,
        HOSTILE: 0,
    }  # requests no metrics


def test_only_recently_seen_unterminated_clients_are_listed(clickhouse: RunningClickHouse) -> None:
    assert list(points(found(clickhouse, "--metrics", "*", "--since", "1h"))) == ["orders", "orders-2"]
    assert "gone" not in points(found(clickhouse, "--metrics", "*", "--since", "7d"))


def test_interval_is_capped_at_the_default(clickhouse: RunningClickHouse) -> None:
    document = found(clickhouse, "--metrics", PRODUCER, "--interval", "3600000", "--match", "client_id=orders")
    assert (document["interval_ms"], document["points_per_second"]) == (300_000, 2 / 300)


def test_preview_prints_escaped_text(clickhouse: RunningClickHouse) -> None:
    shown = preview(clickhouse, "--metrics", PRODUCER, "--interval", "1000")
    assert "app-\\x1b[2J[bold]" in shown
    assert "\x1b" not in shown
    assert f"~{JAVA_POINTS}" in shown
    last = "3 of 3 client instances seen in the last 24h match: 127.0 points per second at 1000 ms"
    assert shown.splitlines()[-1] == last
    nobody = preview(clickhouse, "--metrics", "*", "--match", "client_id=nobody")
    assert nobody == "0 of 3 client instances seen in the last 24h match: 0.0 points per second at 300000 ms\n"


def test_options_override_an_existing_subscription(clickhouse: RunningClickHouse, tmp_path: Path) -> None:
    with RunningSink(tmp_path) as sink:
        there = ["--bootstrap-server", sink.bootstrap, "--name", "one"]
        options = ["--metrics", CONSUMER, "--interval", "1000", "--match", "client_id=orders"]
        assert CliRunner().invoke(app, ["alter", *there, *options]).exit_code == 0
        assert points(found(clickhouse, *there)) == {"orders": 1}
        altered = found(clickhouse, *there, "--metrics", PRODUCER, "--interval", "500")
        assert (points(altered), altered["points_per_second"]) == ({"orders": 2}, 4.0)
        assert len(found(clickhouse, *there, "--match", "")["clients"]) == 3
        described = CliRunner().invoke(app, ["describe", *there]).stdout  # nothing changed
        assert f"metrics={CONSUMER}" in described
        missing = ["preview", "--url", clickhouse.url, "--bootstrap-server", sink.bootstrap, "--name", "nope"]
        result = CliRunner().invoke(app, missing)
        assert result.exit_code == 2
        assert result.stderr.startswith("headroom: nothing to preview")


def test_invalid_url_is_a_one_line_error(clickhouse: RunningClickHouse) -> None:
    result = CliRunner().invoke(app, ["preview", "--url", f"{clickhouse.url}/no$database", "--metrics", "*"])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.endswith("/no$database' names more than a server, a path and a database of letters, digits and _")
