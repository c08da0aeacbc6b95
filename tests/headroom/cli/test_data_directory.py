"""`headroom quarantine list | show | replay` and `headroom spool status | inspect | skip`, on a data directory."""

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from exporters.model import Connection, DropReason, Push, QuotaLimit, RecordKind
from exporters.spool.reader import SpoolReader
from exporters.spool.records import decode_push, encode_instance, encode_rows, push_origin, push_record, sender_bytes
from exporters.spool.writer import SpoolWriter
from headroom.cli import quarantine
from headroom.cli.main import app
from headroom.config.settings import SpoolConfig
from telemetry.decode.decoder import Refusal
from telemetry.ingest.progress import Counts
from telemetry.ingest.quarantine import Quarantine

CONNECTION = Connection("prod", "EXTERNAL", "alice", "10.0.0.7", 50_000, "librdkafka", "2.16.0", 1)
LIMIT = QuotaLimit("prod", "alice", "<default>", "", "producer_byte_rate", 1, None)
HOSTILE = "app-\x1b[2J\u202e\n[bold]"  # clears a terminal, reverses the direction, begins a line, is markup
ESCAPED = "app-\\x1b[2J\\u202e\\n[bold]"
PAYLOAD = bytes(range(256)) * 4
PUSHES = [
    (1_000, "app-1", DropReason.DECODE, b"rubbish\n\x1b"),
    (2_000, HOSTILE, DropReason.DECODE, b""),
    (3_000, "app-1", DropReason.DECOMPRESS, PAYLOAD),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with three quarantined pushes, and files that a crash may leave behind."""
    quarantine = Quarantine(tmp_path / "quarantine", 10, 1 << 20)
    refused = [
        (
            Push(CONNECTION, client_id, bytes(range(16)), received_at_ms, 7, False, 4, payload),
            Refusal(reason, f"cannot {reason}:\n{client_id}"),
        )
        for received_at_ms, client_id, reason, payload in PUSHES
    ]
    quarantine.write("token", refused)
    for name, content in {"0-torn.push": b'{"rea', "1-list.push": b"[]\n", "note.txt": b"{}\n"}.items():
        (tmp_path / "quarantine" / name).write_bytes(content)
    return tmp_path


def run(data: Path, group: str, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [group, command, *arguments, "--data", str(data)])


def listed(data: Path, *arguments: str) -> list[dict[str, object]]:
    result = run(data, "quarantine", "list", "--output", "json", *arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = orjson.loads(result.stdout)
    return found


def test_list_shows_newest_first_with_all_fields(data: Path) -> None:
    found = listed(data)
    assert [(one["received_at_ms"], one["client_id"], one["reason"]) for one in found] == [
        (at, client, reason.value) for at, client, reason, _ in reversed(PUSHES)
    ]
    assert found[0]["software"] == "librdkafka 2.16.0"
    assert found[0]["bytes"] == len(PAYLOAD)
    assert len({one["id"] for one in found}) == 3


def test_list_filters_by_reason_and_client(data: Path) -> None:
    assert [one["received_at_ms"] for one in listed(data, "--reason", "decode")] == [2_000, 1_000]
    assert [one["received_at_ms"] for one in listed(data, "--client-id", "app-1")] == [3_000, 1_000]
    assert [one["received_at_ms"] for one in listed(data, "--client-id", "app-1", "--reason", "decode")] == [1_000]
    assert listed(data, "--client-id", "app") == []
    assert run(data, "quarantine", "list", "--reason", "nonsense").exit_code == 2


def test_control_characters_of_clients_are_escaped(data: Path) -> None:
    hostile = str(listed(data, "--client-id", HOSTILE)[0]["id"])
    for arguments in (["list"], ["show", hostile]):
        shown = run(data, "quarantine", *arguments).stdout
        assert ESCAPED in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert run(data, "quarantine", "list").stdout.endswith("3 in quarantine\n")


def test_show_prints_fields_and_a_hexdump(data: Path) -> None:
    of_first = str(listed(data, "--reason", "decode")[1]["id"])
    shown = run(data, "quarantine", "show", of_first).stdout.splitlines()
    assert shown[0] == "reason: decode"
    assert shown[1] == "cause: cannot decode:\\napp-1"
    assert "received_at: 1970-01-01 00:00:01.000" in shown
    assert shown[-1] == "00000000  72 75 62 62 69 73 68 0a 1b                       |rubbish..|"


def test_long_payload_is_truncated_on_screen_and_written_completely(data: Path, tmp_path: Path) -> None:
    long = str(listed(data, "--reason", "decompress")[0]["id"])
    shown = run(data, "quarantine", "show", long[:12], "--bytes", "20").stdout.splitlines()
    assert shown[-3:-1] == [
        "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  |................|",
        "00000010  10 11 12 13                                      |....|",
    ]
    assert shown[-1] == f"and {len(PAYLOAD) - 20} bytes more"
    file = tmp_path / "payload"
    assert run(data, "quarantine", "show", long, "--payload", str(file)).exit_code == 0
    assert file.read_bytes() == PAYLOAD


def test_unknown_id_is_a_one_line_error_and_a_directory_may_be_empty(data: Path, tmp_path: Path) -> None:
    for id_, said in (("zzz", "no pushes"), ("", "3 pushes")):
        result = run(data, "quarantine", "show", id_)
        assert (result.exit_code, result.stderr) == (
            2,
            f"headroom: {said} in quarantine have an id that begins with {id_!r}\n",
        )
    (tmp_path / "new").mkdir()  # a started server whose worker has not run yet
    assert run(tmp_path / "new", "quarantine", "list").stdout == "0 in quarantine\n"


def test_replay_moves_pushes_from_quarantine_to_spool(data: Path) -> None:
    assert run(data, "quarantine", "replay").stdout == "0 pushes sent again\n"
    result = run(data, "quarantine", "replay", "--reason", "decode")
    assert (result.exit_code, result.stdout) == (0, "2 pushes sent again\n")
    assert [one["reason"] for one in listed(data)] == ["decompress"]
    reader = SpoolReader(data / "spool")
    batch = reader.next_batch(10, 1 << 20)
    reader.close()
    assert batch is not None
    again = [decode_push(body) for _, body in batch.records]
    assert [(push.received_at_ms, push.client_id, push.payload) for push in again] == [
        (received_at_ms, client_id, payload) for received_at_ms, client_id, _, payload in reversed(PUSHES[:2])
    ]
    assert batch.writer == "replay"
    assert run(data, "quarantine", "replay", "0000").exit_code == 2


def test_truncated_payload_is_not_replayed(data: Path) -> None:
    newest = max((data / "quarantine").glob("*-*.push"), key=lambda path: path.stat().st_size)
    newest.write_bytes(newest.read_bytes()[:-100])
    result = run(data, "quarantine", "replay", "--reason", "decompress")
    assert (result.exit_code, "has 924 of 1024 bytes of payload" in result.output) == (2, True)
    assert len(listed(data)) == len(PUSHES)
    assert not (data / "spool").exists()


def test_replay_into_a_full_spool_writes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SpoolConfig().model_copy(update={"max_bytes": 250})  # room for one of the two
    monkeypatch.setattr(quarantine, "SpoolConfig", lambda: limits)
    result = run(data, "quarantine", "replay", "--reason", "decode")
    assert (result.exit_code, "cannot queue" in result.output) == (2, True)
    assert len(listed(data)) == len(PUSHES)
    assert sum(path.stat().st_size for path in (data / "spool").iterdir()) == 0


@pytest.fixture
def spooled(tmp_path: Path) -> Path:
    """A data directory whose spool holds four records; one segment is still being written."""
    sender = sender_bytes(CONNECTION, "app-\x1b[2J")
    spool = SpoolWriter(tmp_path / "spool", "pushes", segment_bytes=1 << 20, max_bytes=1 << 26)
    spool.append(RecordKind.INSTANCE, encode_instance(1_000, bytes(16), sender))
    spool.append(RecordKind.PUSH, push_record(2_000, push_origin(bytes(16), 7, False, 4, sender), b"payload"))
    spool.append(RecordKind.LIMITS, encode_rows(RecordKind.LIMITS, [LIMIT, LIMIT]))
    spool.append(RecordKind.USAGE, b"{")
    spool.close()
    return tmp_path


def status(spooled: Path) -> dict[str, list[dict[str, object]]]:
    result = run(spooled, "spool", "status", "--output", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, list[dict[str, object]]] = orjson.loads(result.stdout)
    return found


def test_status_works_while_a_worker_reads(spooled: Path) -> None:
    reader = SpoolReader(spooled / "spool")
    batch = reader.next_batch(1, 1 << 20)
    assert batch is not None
    reader.begin(batch)
    reader.commit(batch)
    [segment] = status(spooled)["segments"]
    assert (segment["writer"], segment["records"], segment["position"]) == ("pushes", 3, batch.end)
    assert segment["being_written"] is False
    table = run(spooled, "spool", "status").stdout
    assert "pushes" in table
    assert table.splitlines()[-1].endswith("are waiting; 1 records are finished")
    reader.close()


def test_inspect_lists_records_with_their_clients(spooled: Path) -> None:
    name = str(status(spooled)["segments"][0]["segment"])
    lines = run(spooled, "spool", "inspect", name).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["instance", "push", "limits", "usage"]
    assert "1970-01-01 00:00:02.000 alice app-\\x1b[2J payload=7 compression=4" in lines[1]
    assert lines[2].endswith("2 rows")
    assert "cannot be read" in lines[3]
    assert len(run(spooled, "spool", "inspect", name, "--records", "1").stdout.splitlines()) == 1
    assert run(spooled, "spool", "inspect", "nothing").exit_code == 2


def test_skip_drops_records_and_counts_them(spooled: Path) -> None:
    name = str(status(spooled)["segments"][0]["segment"])
    assert run(spooled, "spool", "skip", name, "--records", "3").stdout.startswith("3 records")
    reader = SpoolReader(spooled / "spool")
    assert Counts.of_note(reader.note).dropped.total() == 3
    batch = reader.next_batch(10, 1 << 20)
    assert batch is not None
    assert [kind for kind, _ in batch.records] == [RecordKind.USAGE]
    refused = run(spooled, "spool", "skip", name)
    reader.close()
    assert refused.exit_code == 1
    assert "another storage worker reads the spool" in refused.stderr
    assert run(spooled, "spool", "skip", "nothing").exit_code == 2


def test_missing_directory_is_a_one_line_error(tmp_path: Path) -> None:
    assert run(tmp_path, "spool", "status").exit_code == 0
    assert run(tmp_path, "spool", "inspect", "x").exit_code == 2
    nowhere = tmp_path / "nowhere"
    for command in ("spool status", "spool inspect x", "spool skip x", "quarantine list"):
        result = run(nowhere, *command.split())
        assert (result.exit_code, result.stderr) == (1, f"headroom: {nowhere}: No such file or directory\n")
    assert not nowhere.exists()
