"""Compares the rows of quota-headroom with the script. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.truth.script import CLIENTS, HEAVY, HEAVY_BROKER, PHASES, SETTLING_WINDOWS, VICTIMS, expected

FLAGGED = ("warn", "critical", "throttled")
LEAST = 0.95  # of each share

Row = Mapping[str, Any]


class Score(NamedTuple):
    """Shares of windows, and what was wrong."""

    precision: float
    recall: float
    broker: float
    culprit: float
    reason: float
    impact: float
    cause: float
    victim: float
    windows: int
    unscored: int
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.windows > 0 and min(getattr(self, name) for name in SHARES) >= LEAST


SHARES = ("precision", "recall", "broker", "culprit", "reason", "impact", "cause", "victim")


def score(rows: Iterable[Row], victims: Iterable[Row], begin_s: int, window_s: int, phase_s: int) -> Score:
    """`rows`: those of quota_utilization, with `window_start` in seconds since the epoch; `victims`: of windows of the
    last phase that are settled, with the client and who makes it slow."""
    by_key = {(row["client_id"], row["quota_key"], row["window_start"] - begin_s): row for row in rows}
    truth = expected(window_s, phase_s)
    counts: Counter[str] = Counter()
    faults: list[str] = []
    for client in CLIENTS:
        for start in range(0, PHASES * phase_s, window_s):
            row, true = by_key.get((client.name, client.quota_key, start)), truth[client.name, start]
            found = row is not None and row["level"] in FLAGGED
            of_client = {}  # what it feels, and what changed
            if row and true.impact is not None:
                of_client["impact"] = row["impact"] == true.impact
            if row and true.cause is not None and row["level"] in FLAGGED:
                of_client["cause"] = true.cause in row["cause"] if true.cause else row["cause"] == ""
            for what, right in of_client.items():
                counts[f"{what} {right}"] += 1
                if row and not right:
                    faults.append(f"{client.name} at {start} s: {what} not {getattr(true, what)!r}, {row[what]!r}")
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
    _victims(victims, begin_s, window_s, phase_s, counts, faults)
    shares = {what: _share(counts[f"{what} True"], counts[f"{what} False"]) for what in SHARES[2:]}
    hits = counts["True True"]
    return Score(
        precision=_share(hits, counts["False True"]),
        recall=_share(hits, counts["True False"]),
        **shares,
        windows=hits + counts["False True"] + counts["True False"] + counts["False False"],
        unscored=counts["unscored"],
        faults=tuple(faults),
    )


def victim_windows(window_s: int, phase_s: int) -> range:
    """The first seconds of the windows in which HEAVY is heavy for some time."""
    return range((PHASES - 1) * phase_s + SETTLING_WINDOWS * window_s, PHASES * phase_s, window_s)


def _victims(
    victims: Iterable[Row], begin_s: int, window_s: int, phase_s: int, counts: Counter[str], faults: list[str]
) -> None:
    """Each victim of the script in each window, and those that are none."""
    named = {(row["client_id"], row["window_start"] - begin_s): row["slowed_by_client_id"] for row in victims}
    at_broker = {client.name for client in CLIENTS if client.broker(PHASES - 1) == HEAVY_BROKER}
    for start in victim_windows(window_s, phase_s):
        for client in CLIENTS:
            found = named.get((client.name, start), "")
            if client.name in VICTIMS:
                right = found == HEAVY
            elif client.name in at_broker and found in ("", HEAVY):
                continue  # it may be throttled at the moment, or report no latency
            else:
                right = found == ""
            counts[f"victim {right}"] += 1
            if not right:
                faults.append(f"{client.name} at {start} s: victim of {found!r}")


def _share(right: int, wrong: int) -> float:
    return right / (right + wrong) if right else 0.0


def _text(row: Row | None) -> str:
    if row is None:
        return "no row"
    return f"{row['level']} on broker {row['broker_id']}, culprit {row['culprit_client_id']!r}: {row['reason']}"
