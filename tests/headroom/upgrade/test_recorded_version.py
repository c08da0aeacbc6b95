"""The data directory and the spool of the last release are read: what is stored stays, what is spooled is stored.

`python -m tests.headroom.upgrade.test_recorded_version` records them, anew for each release, by its own code. Its store
has the points 0 to 19 of one client, its spool the points 20 to 39, which were acknowledged while the store was away.
Its tables keep rows forever, as an operator may set them.
"""

import asyncio
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
import zstandard

from exporters.clickhouse.client import ClickHouse, with_writer
from exporters.clickhouse.connection import Endpoint
from tests.headroom.server.processes.pushes import push
from tests.kit.serving import Served, config_file, eventually, rows

pytestmark = [pytest.mark.release, pytest.mark.clickhouse]

RECORDED = Path(__file__).parent / "recorded" / "data-0.1.0.tar.zst"
STORED, SPOOLED = range(20), range(20, 40)
CLIENT_ID = "recorded"
_TABLES = ("points", "series", "pushes", "client_instances")
_AWAY = "http://127.0.0.1:1"


def points(served: Served) -> list[float]:
    """The values of the client that are in the store."""
    sql = f"SELECT value FROM headroom.client_metrics WHERE client_id = '{CLIENT_ID}' ORDER BY value"
    return [float(value) for (value,) in rows(served.sql, sql)]


def record(directory: Path) -> None:
    """Makes a data directory and packs it."""
    arguments = config_file(directory, push_ms=100)
    with Served(directory, *arguments) as served:
        asyncio.run(push(served.address, *STORED, client_id=CLIENT_ID))
        eventually(lambda: points(served), lambda found: len(found) == len(STORED))
        writer = ClickHouse((with_writer(Endpoint.parse(f"http://{served.sql}")),))
        for table in _TABLES:
            writer.command(f"ALTER TABLE {table} REMOVE TTL")
        writer.close()
    with Served(directory, *arguments, "--clickhouse", _AWAY) as served:
        asyncio.run(push(served.address, *SPOOLED, client_id=CLIENT_ID))
    RECORDED.parent.mkdir(exist_ok=True)
    with zstandard.open(RECORDED, "wb", cctx=zstandard.ZstdCompressor(19)) as packed, io.BytesIO() as plain:
        with tarfile.open(fileobj=plain, mode="w") as tar:
            tar.add(directory / "data", "data", filter=_packable)
        packed.write(plain.getvalue())


def _packable(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and directories without the owner; no socket, log or password."""
    if not (member.isfile() or member.isdir() or member.issym()) or member.name.endswith((".password", ".log", ".pid")):
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def test_data_of_the_last_release_is_read(tmp_path: Path) -> None:
    with zstandard.open(RECORDED, "rb") as packed, tarfile.open(fileobj=io.BytesIO(packed.read())) as tar:
        tar.extractall(tmp_path, filter="data")
    with Served(tmp_path) as served:
        eventually(lambda: len(points(served)), lambda count: count >= len(STORED) + len(SPOOLED))
        assert points(served) == [*STORED, *SPOOLED]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        record(Path(scratch))
    print(f"{RECORDED.name}: {RECORDED.stat().st_size:,} bytes")
