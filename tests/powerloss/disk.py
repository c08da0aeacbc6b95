"""Model of a directory after a power loss, from the preceding system calls: only synced data is certain.

The model is a worst case. Data written to a file before a sync began survives; of later writes any subset survives, in
any order, complete or torn. Name changes before a sync of the directory survive; of later ones a prefix survives,
because journals keep their order. Also derived from system calls: when parts of a table became durable.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

from tests.powerloss.strace_log import Call

_WRITES = ("write", "pwrite64", "writev", "pwritev")
_NAMING = ("open", "creat", "rename", "link", "unlink")  # calls with paths


class _Change(NamedTuple):
    """A change of a file: `data` at `offset`, or, without data, its length (`grow`: at least)."""

    end: int
    offset: int
    data: bytes | None
    grow: bool = False


@dataclass(eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)  # certain
    unsynced: list[_Change] = field(default_factory=list)

    def sync(self, before: int) -> None:
        for change in self.unsynced:
            if change.end < before:
                _apply(self.content, change)
        self.unsynced = [change for change in self.unsynced if change.end >= before]

    def after_loss(self, rng: random.Random, share: float) -> bytes:
        found = bytearray(self.content)
        for change in rng.sample(self.unsynced, len(self.unsynced)):
            if rng.random() < share:
                torn = change.data is not None and rng.random() < 0.3
                data = change.data[: rng.randrange(len(change.data) + 1)] if torn and change.data else change.data
                _apply(found, change._replace(data=data))
        return bytes(found)


class _Entry(NamedTuple):
    """A change of the directory, in one step: a name is removed, another is linked to a file; '': none."""

    end: int
    removed: str
    linked: str
    file: _File


def _apply(content: bytearray, change: _Change) -> None:
    if change.offset > len(content):
        content.extend(bytes(change.offset - len(content)))
    if change.data is not None:
        content[change.offset : change.offset + len(change.data)] = change.data
    elif not change.grow:
        del content[change.offset :]


class Disk:
    """One directory without subdirectories. Takes calls in the order in which they begin."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._certain: dict[str, _File] = {}
        self._names: dict[str, _File] = {}
        self._unsynced: list[_Entry] = []
        self._positions: dict[tuple[int, int], int] = {}  # of a descriptor in a file

    def feed(self, call: Call) -> None:
        """A call that has ended, or (result -1) one that has begun."""
        if call.name in ("openat", "open", "creat"):
            self._open(call)
        elif call.name in (*_WRITES, "ftruncate", "fallocate", "lseek"):
            self._change(call)
        elif call.name in ("fsync", "fdatasync"):
            self._sync(call)
        elif call.name.startswith(("rename", "link", "unlink")):
            self._rename(call)

    def after_loss(self, rng: random.Random) -> dict[str, bytes]:
        """The files that exist after the power loss, by name."""
        names = dict(self._certain)
        for entry in self._unsynced[: rng.randrange(len(self._unsynced) + 1)]:
            _enter(names, entry)
        share = rng.choice([0.0, 0.5, 1.0])
        return {name: file.after_loss(rng, share) for name, file in names.items()}

    def _open(self, call: Call) -> None:
        name = self._name(call.paths[0])
        if name is None or call.result < 0:
            return
        file = self._names.get(name)
        if file is None:
            if "O_CREAT" not in call.arguments:
                return
            file = _File()
            self._enter(_Entry(call.end, "", name, file))
        if "O_TRUNC" in call.arguments:
            file.unsynced.append(_Change(call.end, 0, None))
        if "O_RDONLY" not in call.arguments:  # a reader, another process, may have the same descriptor number
            self._positions[call.result, id(file)] = 0

    def _change(self, call: Call) -> None:
        file = self._names.get(self._name(call.opened_as) or "")
        if file is None:
            return
        place = (call.descriptor, id(file))
        if call.name == "lseek":
            self._positions[place] = call.result
        elif call.name == "ftruncate":
            file.unsynced.append(_Change(call.end, call.numbers[0], None))
        elif call.name == "fallocate":
            _mode, start, length = call.numbers
            file.unsynced.append(_Change(call.end, start + length, None, grow=True))
        else:
            data = b"".join(call.strings)
            data = data[: call.result] if call.result >= 0 else data
            at = call.numbers[-1] if call.name.startswith("pwrite") else self._positions[place]
            file.unsynced.append(_Change(call.end, at, data))
            self._positions[place] = at + len(data)

    def _sync(self, call: Call) -> None:
        if call.result < 0:
            return
        if call.opened_as == self._directory:
            for entry in self._unsynced:
                if entry.end < call.begin:
                    _enter(self._certain, entry)
            self._unsynced = [entry for entry in self._unsynced if entry.end >= call.begin]
        elif (file := self._names.get(self._name(call.opened_as) or "")) is not None:
            file.sync(call.begin)

    def _rename(self, call: Call) -> None:
        old, *new = (self._name(path) for path in call.paths)
        file = self._names.get(old or "")
        if file is None or old is None:
            return
        removed = "" if call.name.startswith("link") else old
        self._enter(_Entry(call.end, removed, (new[0] or "") if new else "", file))

    def _enter(self, entry: _Entry) -> None:
        _enter(self._names, entry)
        self._unsynced.append(entry)

    def _name(self, path: str) -> str | None:
        """The name of a path in the directory."""
        parent, _, name = path.rpartition("/")
        return name if parent == self._directory else None


def _enter(names: dict[str, _File], entry: _Entry) -> None:
    names.pop(entry.removed, None)
    if entry.linked:
        names[entry.linked] = entry.file


def calls_of(directory: str, calls: Iterable[Call]) -> list[Call]:
    """The calls that concern the directory or a file in it, in the order in which they begin.

    A call that depends on one of another process may end in the log before that one, but never begins before it: a
    writer takes a file whose name it has seen while the log still lacks the end of the reader's rename.
    """
    within = f"{directory}/"
    found = [
        call
        for call in calls
        if call.opened_as == directory
        or call.opened_as.startswith(within)
        or (call.name.startswith(_NAMING) and any(path.startswith(within) for path in call.paths))
    ]
    return sorted(found, key=lambda call: call.begin)


def fed(directory: str, calls: Iterable[Call], cut: int) -> Disk:
    """The directory after the calls before the line `cut`. `calls` as calls_of returns them."""
    disk = Disk(directory)
    for call in calls:
        if call.end < cut:
            disk.feed(call)
        elif call.begin < cut:
            disk.feed(replace(call, result=-1))
        else:
            break
    return disk


# A part of a ClickHouse table is written as `tmp_insert_NAME` and renamed to NAME. It is durable when each of its files
# was synced after its last write, and its directory after the rename. The rename is in the parent directory: a
# journaling file system (ext4, xfs) commits it with the sync of the renamed directory, as ClickHouse assumes.
_OF_PARTS = (*_WRITES, "ftruncate")
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
        elif call.name in _OF_PARTS and str(path.parent) in parts:
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
