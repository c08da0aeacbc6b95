"""`headroom spool status | inspect | skip`: what they print about a spool, and skipping a record."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from exporters.model import Connection, QuotaLimit, RecordKind
from exporters.spool.reader import SpoolReader
from exporters.spool.records import encode_instance, encode_rows, push_origin, push_record, sender_bytes
from exporters.spool.writer import SpoolWriter
from headroom.cli.main import app
from telemetry.ingest.progress import Counts

CONNECTION = Connection("prod", "EXTERNAL", "alice", "10.0.0.7", 50_000, "librdkafka", "2.16.0", 1)
LIMIT = QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", 1, None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose spool holds four records; one segment is still being written."""
    sender = sender_bytes(CONNECTION, "app-\x1b[2J")
    spool = SpoolWriter(tmp_path / "spool", "pushes", segment_bytes=1 << 20, max_bytes=1 << 26)
    spool.append(RecordKind.INSTANCE, encode_instance(1_000, bytes(16), sender))
    spool.append(RecordKind.PUSH, push_record(2_000, push_origin(bytes(16), 7, False, 4, sender), b"payload"))
    spool.append(RecordKind.LIMITS, encode_rows(RecordKind.LIMITS, [LIMIT, LIMIT]))
    spool.append(RecordKind.USAGE, b"{")
    spool.close()
    return tmp_path


def run(data: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["spool", command, *arguments, "--data", str(data)])


def status(data: Path) -> dict[str, list[dict[str, object]]]:
    result = run(data, "status", "--output", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, list[dict[str, object]]] = orjson.loads(result.stdout)
    return found


def test_status_works_while_a_worker_reads(data: Path) -> None:
    reader = SpoolReader(data / "spool")
    batch = reader.next_batch(1, 1 << 20)
    assert batch is not None
    reader.begin(batch)
    reader.commit(batch)
    [segment] = status(data)["segments"]
    assert (segment["writer"], segment["records"], segment["position"]) == ("pushes", 3, batch.end)
    assert segment["being_written"] is False
    table = run(data, "status").stdout
    assert "pushes" in table
    assert table.splitlines()[-1].endswith("are waiting; 1 records are finished")
    reader.close()


def test_inspect_lists_records_with_their_clients(data: Path) -> None:
    name = str(status(data)["segments"][0]["segment"])
    lines = run(data, "inspect", name).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["instance", "push", "limits", "usage"]
    assert "1970-01-01 00:00:02.000 alice app-\\x1b[2J payload=7 compression=4" in lines[1]
    assert lines[2].endswith("2 rows")
    assert "cannot be read" in lines[3]
    assert len(run(data, "inspect", name, "--records", "1").stdout.splitlines()) == 1
    assert run(data, "inspect", "nothing").exit_code == 2


def test_skip_drops_records_and_counts_them(data: Path) -> None:
    name = str(status(data)["segments"][0]["segment"])
    assert run(data, "skip", name, "--records", "3").stdout.startswith("3 records")
    reader = SpoolReader(data / "spool")
    assert Counts.of_note(reader.note).dropped.total() == 3
    batch = reader.next_batch(10, 1 << 20)
    assert batch is not None
    assert [kind for kind, _ in batch.records] == [RecordKind.USAGE]
    refused = run(data, "skip", name)
    reader.close()
    assert refused.exit_code == 1
    assert "another storage worker reads the spool" in refused.stderr
    assert run(data, "skip", "nothing").exit_code == 2


def test_missing_spool_is_a_one_line_error(tmp_path: Path) -> None:
    assert run(tmp_path, "status").exit_code == 0
    assert run(tmp_path, "inspect", "x").exit_code == 2
    nowhere = tmp_path / "nowhere"
    for words in (["status"], ["inspect", "x"], ["skip", "x"]):
        result = run(nowhere, *words)
        assert (result.exit_code, result.stderr) == (1, f"headroom: {nowhere}: No such file or directory\n")
    assert not nowhere.exists()
