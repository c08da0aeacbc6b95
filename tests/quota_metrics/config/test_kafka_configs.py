"""The kafka-configs.sh line, also for names that a shell would interpret."""

from __future__ import annotations

import shlex

import pytest

from quota_metrics.config.kafka_configs import kafka_configs_line


@pytest.mark.parametrize(
    ("entity", "value", "words"),
    [
        ([("user", "alice")], 5000.0, ["--entity-type", "users", "--entity-name", "alice", "--add-config", "k=5000"]),
        ([("user", None)], 12.5, ["--entity-type", "users", "--entity-default", "--add-config", "k=12.5"]),
        ([("client-id", None)], None, ["--entity-type", "clients", "--entity-default", "--delete-config", "k"]),
        (
            [("user", "a'; rm -rf / #"), ("client-id", "$(id) `id`")],
            1e15,
            ["--entity-type", "users", "--entity-name", "a'; rm -rf / #", "--entity-type", "clients", "--entity-name",
             "$(id) `id`", "--add-config", "k=1000000000000000"],
        ),
    ],
)  # fmt: skip
def test_kafka_configs_line_is_quoted_for_the_shell(
    entity: list[tuple[str, str | None]], value: float | None, words: list[str]
) -> None:
    line = kafka_configs_line(entity, "k", value)
    assert shlex.split(line) == ["kafka-configs.sh", "--bootstrap-server", "HOST:PORT", "--alter", *words]
