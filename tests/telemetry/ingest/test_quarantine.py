"""The quarantine keeps refused pushes unmodified: the newest ones, within its limits, each once."""

from dataclasses import asdict
from pathlib import Path

from exporters.model import DropReason, Push
from telemetry.decode.decoder import Refusal
from telemetry.ingest.quarantine import Quarantine, held
from tests.telemetry.decode.payloads import CONNECTION

REFUSAL = Refusal(DropReason.DECODE, "no MetricsData\nat all")


def push(received_at_ms: int, payload: bytes = b"rubb\nish") -> Push:
    return Push(CONNECTION, "app-1", bytes(range(16)), received_at_ms, 7, False, 4, payload)


def times(directory: Path) -> list[int]:
    """When the pushes in it were received, the newest first."""
    return [push.facts["received_at_ms"] for push in held(directory)]


def test_file_contains_time_client_reason_and_payload(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "quarantine", 10, 10_000)
    quarantine.write("token", [(push(17), REFUSAL)])
    [quarantined] = held(tmp_path / "quarantine")
    assert quarantined.push() == push(17)
    assert quarantined.payload() == b"rubb\nish"
    assert quarantined.facts == {
        "received_at_ms": 17,
        "reason": "decode",
        "cause": "no MetricsData\nat all",
        "cluster": "prod",
        "principal": "alice",
        "client_id": "app-1",
        "client_instance_id": bytes(range(16)).hex(),
        "software": "apache-kafka-java 4.3.1",
        "source_address": "10.0.0.7",
        "compression": "zstd",
        "bytes": 8,
        "compression_type": 4,
        "subscription_id": 7,
        "terminating": False,
        "connection": asdict(CONNECTION),
    }


def test_newest_pushes_are_kept_within_limits_across_restarts(tmp_path: Path) -> None:
    for start in (0, 10):
        quarantine = Quarantine(tmp_path, 5, 100_000)
        quarantine.write(f"token-{start}", [(push(number), REFUSAL) for number in range(start, start + 10)])
    assert times(tmp_path) == [19, 18, 17, 16, 15]
    quarantine = Quarantine(tmp_path, 5, 2_000)
    quarantine.write("token-30", [(push(30, bytes(1_000)), REFUSAL)])
    assert times(tmp_path)[0] == 30
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2_000
    quarantine.write("token-31", [(push(31, bytes(5_000)), REFUSAL)])
    assert times(tmp_path) == []


def test_repeated_batch_is_quarantined_once(tmp_path: Path) -> None:
    for repeats in (2, 1):
        quarantine = Quarantine(tmp_path, 10, 10_000)
        for _ in range(repeats):
            quarantine.write("token", [(push(number), REFUSAL) for number in (3, 3, 4)])
    assert times(tmp_path) == [4, 3, 3]


def test_quarantine_of_no_records_keeps_none(tmp_path: Path) -> None:
    Quarantine(tmp_path, 0, 10_000).write("token", [(push(1), REFUSAL)])
    assert times(tmp_path) == []


def test_unwritable_directory_raises_nothing(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "quarantine", 10, 10_000)
    (tmp_path / "quarantine").rmdir()
    for number in range(3):
        quarantine.write("token", [(push(number), REFUSAL)])
    (tmp_path / "quarantine").mkdir()
    quarantine.write("token-9", [(push(9), REFUSAL)])
    assert times(tmp_path / "quarantine") == [9]
