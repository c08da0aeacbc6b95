"""How long brokers did not read clients: of bare samples the union of their spans, of intervals the longest muted time
that a gateway saw, second by second."""

from __future__ import annotations

import numpy as np

from quota_metrics.minutes.columns import Floats, Ints, starts_of


def covered_ms(client: Ints, from_ms: Ints, to_ms: Ints, clients: int) -> Floats:
    """The length of the union of each client's spans; times are relative to the window."""
    if not len(client):
        return np.zeros(clients)
    order = np.lexsort((from_ms, client))
    client, from_ms, to_ms = client[order], from_ms[order], to_ms[order]
    beyond = int(to_ms.max()) + 1  # clients one after another on one line
    begin, end = client * beyond + from_ms, client * beyond + to_ms
    reached = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
    lengths = np.maximum(end - np.maximum(begin, reached), 0)
    return np.bincount(client, lengths, clients).astype(np.float64)


def held_ms(client: Ints, row: Ints, second: Ints, ms: Floats, clients: int) -> Floats:
    """Per client the sum over seconds of the longest time of a row. `second` in the window; several are added."""
    if not len(client):
        return np.zeros(clients)
    order = np.lexsort((row, second, client))
    client, row, second, ms = client[order], row[order], second[order], ms[order]
    width = int(second.max()) + 1
    starts = starts_of((client * width + second) * (int(row.max()) + 1) + row)
    of_row = np.add.reduceat(ms, starts)
    client, second = client[starts], second[starts]
    starts = starts_of(client * width + second)
    return np.bincount(client[starts], np.maximum.reduceat(of_row, starts), clients).astype(np.float64)
