"""What is lost with the spool. A copied data directory and a store that starts late: tests/headroom/upgrade."""

import shutil
from pathlib import Path

import pytest

from tests.kit import wire
from tests.kit.serving import Served, config_file, eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

PUSHES = 20
VECTOR = Path(__file__).parents[1] / "vectors" / "librdkafka-2.16.0-producer.zst"
ZSTD = 4
AWAY = "http://headroom@127.0.0.1:9/headroom"


def push(served: Served, first: int, count: int) -> None:
    """`count` acknowledged pushes, each of an instance of its own."""
    for number in range(first, first + count):
        client = wire.connect(served.address[1])
        client.sendall(wire.request(wire.GET, wire.NEW_ID + b"\0", f"client-{number}".encode()))
        ids = wire.subscribed(wire.read_frame(client))
        client.sendall(wire.push(*ids, ZSTD, VECTOR.read_bytes()))
        assert wire.error_code(wire.read_frame(client)) == 0
        client.close()


def stored(served: Served) -> int:
    """Acknowledged pushes in the store."""
    return int(rows(served.sql, "SELECT count() FROM headroom.pushes WHERE error_code = 0")[0][0])


def test_lost_spool_loses_only_its_own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_CLICKHOUSE_PASSWORD", "unused")
    options = config_file(tmp_path, push_ms=1000)
    with Served(tmp_path, *options) as served:
        push(served, 0, PUSHES)
        eventually(lambda: stored(served), lambda count: count == PUSHES)
        assert served.stop() == 0
    with Served(tmp_path, *options, "--clickhouse", AWAY) as served:
        push(served, PUSHES, PUSHES)
        assert served.stop() == 0
    shutil.rmtree(tmp_path / "data" / "spool")
    with Served(tmp_path, *options) as served:
        push(served, 2 * PUSHES, PUSHES)
        eventually(lambda: stored(served), lambda count: count == 2 * PUSHES)
