"""When parts of a ClickHouse table became durable, derived from the server's system calls.

A part is written as `tmp_insert_NAME` and renamed to NAME. It is durable when each of its files was synced after its
last write, and its directory after the rename. The rename is in the parent directory: a journaling file system (ext4,
xfs) commits it with the sync of the renamed directory, as ClickHouse assumes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

from tests.powerloss.strace_log import Call

_WRITES = ("write", "pwrite64", "writev", "pwritev", "ftruncate")
_TEMPORARY = "tmp_insert_"


@dataclass
class _Part:
    unsynced: dict[str, int] = field(default_factory=dict)  # file -> where its last write ends
    synced: int = 0  # where the last sync of a file ends
    renamed: int = 0
    durable: int = 0  # where the sync of the directory after the rename ends


def durable_parts(calls: Iterable[Call]) -> dict[str, int]:
    """Directory of a part -> the line from which on it is durable. `calls` in the order in which they end."""
    parts: defaultdict[str, _Part] = defaultdict(_Part)
    durable: dict[str, int] = {}
    for call in calls:
        if call.name.startswith("rename"):
            old, new = (PurePath(path) for path in call.paths[:2])
            if old.name.startswith(_TEMPORARY) and str(old) in parts:
                parts[str(new)] = parts.pop(str(old))
                parts[str(new)].renamed = call.end
            continue
        path = PurePath(call.opened_as)
        if call.name == "openat" and "O_CREAT" in call.arguments and call.result >= 0:
            created = PurePath(call.paths[0])
            if created.parent.name.startswith(_TEMPORARY):
                parts[str(created.parent)].unsynced[created.name] = call.end
        elif call.name in _WRITES and str(path.parent) in parts:
            parts[str(path.parent)].unsynced[path.name] = call.end
        elif call.name in ("fsync", "fdatasync") and call.result >= 0:
            if str(path.parent) in parts:
                part = parts[str(path.parent)]
                if part.unsynced.get(path.name, 0) < call.begin:
                    part.unsynced.pop(path.name, None)
                    part.synced = call.end
            elif str(path) in parts:
                part = parts[str(path)]
                if part.renamed and part.renamed < call.begin and not part.unsynced:
                    durable.setdefault(str(path), call.end)
    return durable
