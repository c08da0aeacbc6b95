"""Compares the rows of quota-headroom with the script. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.truth.script import CLIENTS, PHASES, expected

FLAGGED = ("warn", "critical", "throttled")
LEAST = 0.95  # precision, recall and the share of right brokers, culprits and reasons

Row = Mapping[str, Any]


class Score(NamedTuple):
    """Shares of windows, and what was wrong."""

    precision: float
    recall: float
    broker: float
    culprit: float
    reason: float
    windows: int
    unscored: int
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        shares = (self.precision, self.recall, self.broker, self.culprit, self.reason)
        return self.windows > 0 and min(shares) >= LEAST


def score(rows: Iterable[Row], begin_s: int, window_s: int, phase_s: int) -> Score:
    """`rows`: those of quota_utilization, with `window_start` in seconds since the epoch."""
    by_key = {(row["client_id"], row["quota_key"], row["window_start"] - begin_s): row for row in rows}
    truth = expected(window_s, phase_s)
    counts: Counter[str] = Counter()
    faults: list[str] = []
    for client in CLIENTS:
        for start in range(0, PHASES * phase_s, window_s):
            row, true = by_key.get((client.name, client.quota_key, start)), truth[client.name, start]
            found = row is not None and row["level"] in FLAGGED
            if true.flagged is None:
                counts["unscored"] += 1
                continue
            counts[f"{true.flagged} {found}"] += 1
            if found != true.flagged:
                faults.append(f"{client.name} at {start} s: expected {true.flagged}, {_text(row)}")
            if not (row and found and true.flagged):
                continue
            rights = {"broker": row["broker_id"] == true.broker, "reason": true.reason in row["reason"]}
            if true.culprit:
                rights["culprit"] = row["culprit_client_id"] == true.culprit
            for what, right in rights.items():
                counts[f"{what} {right}"] += 1
                if not right:
                    faults.append(f"{client.name} at {start} s: {what}, {_text(row)}")
    shares = {what: _share(counts[f"{what} True"], counts[f"{what} False"]) for what in ("broker", "culprit", "reason")}
    hits = counts["True True"]
    return Score(
        precision=_share(hits, counts["False True"]),
        recall=_share(hits, counts["True False"]),
        **shares,
        windows=hits + counts["False True"] + counts["True False"] + counts["False False"],
        unscored=counts["unscored"],
        faults=tuple(faults),
    )


def _share(right: int, wrong: int) -> float:
    return right / (right + wrong) if right else 0.0


def _text(row: Row | None) -> str:
    if row is None:
        return "no row"
    return f"{row['level']} on broker {row['broker_id']}, culprit {row['culprit_client_id']!r}: {row['reason']}"
