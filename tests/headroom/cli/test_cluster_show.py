"""`headroom cluster show` against a real broker."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headroom.cli.cluster_facts import app
from headroom.demo.broker import LocalCluster


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["show", *arguments])
    return result.exit_code, result.output


@pytest.mark.kafka
def test_facts_as_table_and_json(kafka: LocalCluster) -> None:
    code, said = run("--upstream", kafka.bootstrap, "--output", "json")
    facts = json.loads(said)
    assert code == 0
    assert (facts["release"], facts["metadata_version"], facts["authorizer"]) == ("4.3", "4.3", False)
    (broker,) = facts["brokers"]
    assert (broker["quota_window_num"], broker["quota_window_size_ms"], broker["callback_class"]) == (11, 1000, "")
    code, said = run("--upstream", kafka.bootstrap)
    assert code == 0
    assert "Kafka 4.3, metadata.version 4.3" in said
    assert "11 x 1 s" in said
