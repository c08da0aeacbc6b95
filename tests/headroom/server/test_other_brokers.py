"""`headroom serve` in front of a broker that has few APIs in old versions, as some clouds' brokers have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry.wire.apis import API_VERSIONS, DESCRIBE_CONFIGS, METADATA
from tests.kit.raw_connection import RawConnection
from tests.kit.serving import Served, eventually
from tests.quota_metrics.kafka.fake_broker import broker, in_any_version, spans

ANSWERS = {
    API_VERSIONS: spans({METADATA: (0, 5), API_VERSIONS: (0, 3), DESCRIBE_CONFIGS: (1, 2)}),
    DESCRIBE_CONFIGS: in_any_version({"results": []}),
}
WARNINGS = (
    "configuration of broker 1 cannot be read",
    "ACLs with hosts cannot be read",
    "the cluster has no quotas that can be read",
)


@pytest.fixture
def upstream() -> Iterator[str]:
    """HOST:PORT of the broker, which runs in a thread."""
    started, ports, stopping = threading.Event(), list[int](), list[asyncio.Event]()

    async def run() -> None:
        async with broker(ANSWERS) as fake:
            ports.append(fake.port)
            stopping.append(asyncio.Event())
            loops.append(asyncio.get_running_loop())
            started.set()
            await stopping[0].wait()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(10)
    yield f"127.0.0.1:{ports[0]}"
    loops[0].call_soon_threadsafe(stopping[0].set)
    thread.join(10)


@pytest.mark.clickhouse
def test_gateway_starts_and_says_once_what_is_not_known(tmp_path: Path, upstream: str) -> None:
    config = tmp_path / "headroom.yaml"
    config.write_text("quotas: {refresh_ms: 1000}\n")
    with Served(tmp_path, "--upstream", upstream, "--config", str(config)) as served:
        with RawConnection(served.kafka) as client:
            assert client.ask(METADATA, 5, bytes(4) + b"\0")
        eventually(served.log.read_text, lambda text: all(warning in text for warning in WARNINGS))
        eventually(lambda: served.ready()[0], lambda status: status == 200)
        text = served.log.read_text()
    assert "Traceback" not in text
    assert [text.count(warning) for warning in WARNINGS] == [1, 1, 1]
