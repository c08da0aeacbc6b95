"""When the progress of the storage worker makes Headroom not ready."""

from __future__ import annotations

from typing import Any

from headroom.server.processes.storage_worker import StoreProgress

STALLED_S = 60.0


def counts(written: int, buffered: int, refused: int = 0) -> dict[str, Any]:
    return {"written": written, "dropped": refused, "buffered": buffered, "drop_reasons": {"refused": refused}}


def test_stalled_writes_are_not_ready_after_a_timeout() -> None:
    progress = StoreProgress()
    progress.heard(counts(5, 0), 100.0)
    progress.heard(counts(5, 3), 130.0)
    assert progress.not_ready_reason(STALLED_S, 159.0, "away") is None
    assert progress.not_ready_reason(STALLED_S, 161.0, "away") == (
        "nothing was written for 61 s although the spool holds records: away"
    )
    progress.heard(counts(6, 2), 162.0)
    assert progress.not_ready_reason(STALLED_S, 163.0, None) is None


def test_empty_spool_stays_ready() -> None:
    progress = StoreProgress()
    for second in range(0, 1000, 10):
        progress.heard(counts(5, 0), float(second))
    assert progress.not_ready_reason(STALLED_S, 1000.0, None) is None


def test_refusal_is_not_ready_temporarily() -> None:
    progress = StoreProgress()
    progress.heard(counts(5, 0, refused=2), 100.0)  # of an earlier run
    assert progress.not_ready_reason(STALLED_S, 101.0, None) is None
    progress.heard(counts(5, 0, refused=3), 110.0)
    assert progress.not_ready_reason(STALLED_S, 169.0, None) == "the store refuses records"
    assert progress.not_ready_reason(STALLED_S, 171.0, None) is None


def test_refusal_is_ignored_when_other_records_are_written() -> None:
    """Otherwise one record that no table accepts could take the service out of the load balancer."""
    progress = StoreProgress()
    progress.heard(counts(5, 0), 100.0)
    progress.heard(counts(9, 0, refused=1), 101.0)  # in the same report
    assert progress.not_ready_reason(STALLED_S, 101.0, None) is None
    progress.heard(counts(9, 0, refused=2), 102.0)  # alone
    assert progress.not_ready_reason(STALLED_S, 103.0, None) == "the store refuses records"
    progress.heard(counts(10, 0, refused=2), 104.0)  # in a later report
    assert progress.not_ready_reason(STALLED_S, 104.0, None) is None


def test_continuous_refusals_are_not_ready_until_a_write_succeeds() -> None:
    progress = StoreProgress()
    for second in range(200):
        progress.heard(counts(5, 3, refused=second), float(second))
    assert progress.not_ready_reason(STALLED_S, 200.0, None) == "the store refuses records"
    progress.heard(counts(6, 3, refused=200), 201.0)
    assert progress.not_ready_reason(STALLED_S, 201.0, None) is None
