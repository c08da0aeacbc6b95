"""kafka-client-metrics.sh and kafka-configs.sh, the real classes: on a broker, through the gateway, on the sink.

The output is the same byte for byte, errors included, except for the address in one of them. Stack traces are left out,
and the output for several resources is sorted: its order depends on all resources that a broker ever held.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Jvm
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.client_metrics import read_subscriptions
from tests.kit.gateways import RunningSink
from tests.telemetry.conftest import RunningGateway

pytestmark = [pytest.mark.kafka, pytest.mark.java]

PREFIXES = "org.apache.kafka.producer.,org.apache.kafka.consumer."
PATIENCE_S = 60.0
CLIENT_METRICS, CONFIGS = "client-metrics", "configs"
OF_TYPE = ["--entity-type", "client-metrics"]
ONE, TWO = [*OF_TYPE, "--entity-name", "tool-1"], [*OF_TYPE, "--entity-name", "tool-2"]

# The order matters: later commands see what earlier ones set.
COMMANDS: list[tuple[str, list[str]]] = [
    (
        CLIENT_METRICS,
        ["--alter", "--name", "tool-1", "--metrics", PREFIXES, "--interval", "60000", "--match", "client_id=orders-.*"],
    ),
    (CLIENT_METRICS, ["--list"]),
    (CLIENT_METRICS, ["--describe", "--name", "tool-1"]),
    (CLIENT_METRICS, ["--describe", "--name", "tool-none"]),
    (CLIENT_METRICS, ["--alter", "--name", "tool-1", "--interval", "10"]),
    (CLIENT_METRICS, ["--alter", "--name", "tool-1", "--match", "client_id"]),
    (CLIENT_METRICS, ["--alter", "--name", "tool-1", "--match", "client_id=(,)"]),
    (CLIENT_METRICS, ["--alter", "--name", "tool-1", "--interval", ""]),
    (CLIENT_METRICS, ["--alter", "--name", "tool-empty"]),
    (CLIENT_METRICS, ["--alter", "--name", ""]),
    (CLIENT_METRICS, ["--describe"]),
    (CONFIGS, ["--describe", *ONE]),
    (CONFIGS, ["--describe", "--all", *ONE]),
    (CONFIGS, ["--describe", *OF_TYPE, "--entity-name", "tool-none"]),
    (CONFIGS, ["--alter", *TWO, "--add-config", "metrics=[a,b],interval.ms=bbb"]),
    (CONFIGS, ["--alter", *TWO, "--add-config", "metrics=[a,b],interval.ms=5000"]),
    (CONFIGS, ["--alter", *TWO, "--add-config", "random=1"]),
    (CONFIGS, ["--alter", *TWO, "--delete-config", "metrics", "--add-config", "interval.ms=6000"]),
    (CONFIGS, ["--alter", *TWO, "--delete-config", "nothing.of.that.name"]),
    (CONFIGS, ["--describe", *OF_TYPE]),
    (CLIENT_METRICS, ["--delete", "--name", "tool-1"]),
    (CLIENT_METRICS, ["--delete", "--name", "tool-1"]),
    (CLIENT_METRICS, ["--delete", "--name", "tool-2"]),
    (CLIENT_METRICS, ["--list"]),
]


class Tools:
    """Runs the tools in one JVM, which is much quicker than one JVM each, and captures their output."""

    def __init__(self, jvm: Jvm) -> None:
        java = jvm.classes.java
        self._jvm = jvm
        self._system = java.lang.System
        self._exit = jvm.classes.org.apache.kafka.common.utils.Exit
        self._console = getattr(getattr(jvm.classes.scala, "Console$"), "MODULE$")
        self._said = java.io.ByteArrayOutputStream()
        self._stream = java.io.PrintStream(self._said, True)
        self._procedure = java.lang.Class.forName("org.apache.kafka.common.utils.Exit$Procedure")

    def run(self, tool: str, bootstrap: str, arguments: list[str]) -> str:
        """The output of both streams, and the exit status if the tool exits."""
        command: Any = {
            CLIENT_METRICS: self._jvm.classes.org.apache.kafka.tools.ClientMetricsCommand,
            CONFIGS: self._jvm.classes.kafka.admin.ConfigCommand,
        }[tool]
        java = self._jvm.classes.java
        streams = self._system.out, self._system.err
        self._said.reset()
        exits = java.util.ArrayList()
        self._redirect(self._stream, self._stream)
        self._exit.setExitProcedure(java.beans.EventHandler.create(self._procedure, exits, "add", ""))
        try:
            command.main(self._jvm.strings(["--bootstrap-server", bootstrap, *arguments]))
        finally:
            self._exit.resetExitProcedure()
            self._redirect(*streams)
        return str(self._said.toString()) + (f"exit {exits[0]}\n" if len(exits) else "")  # a real process exits once

    def _redirect(self, out: Any, err: Any) -> None:
        self._system.setOut(out)
        self._system.setErr(err)
        self._console.setOutDirect(out)


@pytest.fixture(scope="module")
def tools(jvm: Jvm) -> Tools:
    return Tools(jvm)


@pytest.fixture(scope="module")
def sink(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSink]:
    """With the subscriptions that the shared broker happens to have."""

    async def read() -> dict[str, dict[str, str]]:
        host, _, port = kafka.bootstrap.rpartition(":")
        async with aclosing(KafkaAdmin([(host, int(port))])) as admin:
            return await read_subscriptions(admin)

    with RunningSink(tmp_path_factory.mktemp("sink")) as running:
        running.file.keep(asyncio.run(read()))
        yield running


def shown(said: str, bootstrap: str) -> list[str]:
    """The output about each resource, sorted."""
    lines = [
        line for line in said.replace(bootstrap, "HOST:PORT").splitlines() if not re.match(r"\tat |\t\.\.\. ", line)
    ]
    blocks: list[str] = []
    for line in lines:
        if line.startswith("  ") and blocks:
            blocks[-1] += f"\n{line}"
        else:
            blocks.append(line)
    return sorted(blocks)


def session(tools: Tools, bootstrap: str, expected: list[list[str]] | None = None) -> list[list[str]]:
    """The output of each command. Retries until `expected`: brokers follow their controller with delay."""
    said = []
    for number, (tool, arguments) in enumerate(COMMANDS):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = shown(tools.run(tool, bootstrap, arguments), bootstrap)
            reads = arguments[0] in ("--list", "--describe")
            if not (expected and reads) or answer == expected[number] or time.monotonic() > deadline:
                break
        said.append(answer)
    return said


def test_tool_output_matches_the_broker(
    tools: Tools, kafka: LocalCluster, gateway: RunningGateway, sink: RunningSink
) -> None:
    ours = session(tools, sink.bootstrap)
    described = f"  interval.ms=60000\n  match=client_id=orders-.*\n  metrics={PREFIXES}"
    assert ours[2] == [f"Client metrics configs for tool-1 are:\n{described}", "exit 0"]
    assert any("Illegal client matching pattern" in line for line in ours[5])
    assert session(tools, kafka.bootstrap, ours) == ours
    assert session(tools, gateway.bootstrap, ours) == ours


def test_generated_name_is_accepted(tools: Tools, tmp_path: Path) -> None:
    with RunningSink(tmp_path) as sink:
        said = tools.run(CLIENT_METRICS, sink.bootstrap, ["--alter", "--generate-name", "--metrics", "a"])
        drawn = re.fullmatch(r"Altered client metrics config for ([\w-]{22})\.\nexit 0\n", said)
        assert drawn
        assert sink.rules.resources[drawn[1]] == {"metrics": "a"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_advertised_address_is_the_address_the_client_used(jvm: Jvm, tmp_path: Path, host: str) -> None:
    with RunningSink(tmp_path, host) as sink:
        port = sink.bootstrap.rpartition(":")[2]
        connected = "127.0.0.1" if host == "0.0.0.0" else "[::1]"
        with closing(jvm.admin(f"{connected}:{port}")) as admin:
            (node,) = admin.describeCluster().nodes().get().toArray()
            assert (node.host(), str(node.port())) == (connected.strip("[]"), port)
