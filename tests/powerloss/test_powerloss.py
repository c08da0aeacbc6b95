"""A short run of `make powerloss`, and tests of its parts: strace log, disk model, parts of a table."""

import random
from pathlib import Path

import pytest

from tests.powerloss.__main__ import moments
from tests.powerloss.disk import calls_of, durable_parts, fed
from tests.powerloss.scenario import lose_power, traced
from tests.powerloss.strace_log import Call, calls


def hexed(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def log(*lines: str) -> list[Call]:
    """Converts quoted and bracketed texts to the notation of strace -xx."""
    return list(calls(lines))


def opened(path: str, fd: int, flags: str = "O_WRONLY|O_CREAT") -> str:
    return f'7 openat(AT_FDCWD</>, "{hexed(path)}", {flags}, 0640) = {fd}<{hexed(path)}>'


def wrote(path: str, fd: int, data: str) -> str:
    return f'7 write({fd}<{hexed(path)}>, "{hexed(data)}", {len(data)}) = {len(data)}'


def synced(path: str, fd: int, pid: int = 7) -> str:
    return f"{pid} fdatasync({fd}<{hexed(path)}>) = 0"


def renamed(old: str, new: str) -> str:
    return f'7 rename("{hexed(old)}", "{hexed(new)}") = 0'


def test_interleaved_calls_of_several_threads_are_parsed() -> None:
    first, second, never = log(
        f"7 fdatasync(5<{hexed('/d/a')}> <unfinished ...>",
        '8 write(6<TCP:[127.0.0.1:9092->127.0.0.1:40000]>, "\\x01\\x02", 2) = 2',
        "7 <... fdatasync resumed>) = 0",
        '8 openat(AT_FDCWD</>, "\\x61", O_RDONLY) = -1 ENOENT (No such file or directory)',
        f'7 write(5<{hexed("/d/a")}>, "\\x61" <unfinished ...>',
    )
    assert (first.begin, first.end, first.opened_as) == (1, 1, "TCP:[127.0.0.1:9092->127.0.0.1:40000]")
    assert (first.descriptor, first.strings) == (6, [b"\x01\x02"])
    assert (second.begin, second.end, second.name, second.opened_as) == (0, 2, "fdatasync", "/d/a")
    assert (never.name, never.result, never.end) == ("write", -1, 5)


def contents(found: list[Call], cut: int) -> set[tuple[tuple[str, bytes], ...]]:
    """The possible contents of the directory, from many simulated power losses."""
    rng = random.Random(1)
    return {tuple(sorted(fed("/d", calls_of("/d", found), cut).after_loss(rng).items())) for _ in range(300)}


def test_only_synced_data_is_certain() -> None:
    found = log(
        opened("/d/a", 5),
        wrote("/d/a", 5, "ab"),
        synced("/d/a", 5),
        synced("/d", 4),
        wrote("/d/a", 5, "c"),
        renamed("/d/a", "/d/b"),
    )
    assert contents(found, 4) == {(("a", b"ab"),)}
    assert contents(found, 5) == {(("a", b"ab"),), (("a", b"abc"),)}
    both = {(("a", b"ab"),), (("a", b"abc"),), (("b", b"ab"),), (("b", b"abc"),)}
    assert contents(found, 6) == both
    assert () in contents(found, 3)  # its name was not synced yet
    assert (("a", b"a"),) in contents(found, 2)  # torn
    assert (("a", b""),) in contents(found, 2)


def test_data_written_during_a_sync_is_not_synced() -> None:
    found = log(
        opened("/d/a", 5),
        synced("/d", 4),
        f"8 fdatasync(5<{hexed('/d/a')}> <unfinished ...>",
        wrote("/d/a", 5, "ab"),
        "8 <... fdatasync resumed>) = 0",
    )
    assert (("a", b""),) in contents(found, 5)


def test_rename_whose_end_is_logged_late_takes_effect_before_calls_that_follow_it() -> None:
    found = log(
        opened("/d/a.spool", 5),
        synced("/d", 4),
        f'9 rename("{hexed("/d/a.spool")}", "{hexed("/d/a.free")}" <unfinished ...>',
        renamed("/d/a.free", "/d/b.spool"),
        opened("/d/b.spool", 5, "O_WRONLY"),
        wrote("/d/b.spool", 5, "x"),
        synced("/d/b.spool", 5),
        synced("/d", 4),
        "9 <... rename resumed>) = 0",
    )
    for cut in (8, 9, 10):
        assert all(("b.spool", b"x") in files for files in contents(found, cut))


def test_reader_with_the_descriptor_number_of_the_writer_does_not_move_its_position() -> None:
    found = log(
        opened("/d/a", 5),
        synced("/d", 4),
        wrote("/d/a", 5, "ab"),
        opened("/d/a", 5, "O_RDONLY"),
        wrote("/d/a", 5, "cd"),
        synced("/d/a", 5),
    )
    assert contents(found, 6) == {(("a", b"abcd"),)}


def test_part_is_durable_when_all_its_files_are_synced() -> None:
    steps = [
        opened("/t/tmp_insert_all_1_1_0/data.bin", 5),
        wrote("/t/tmp_insert_all_1_1_0/data.bin", 5, "x"),
        synced("/t/tmp_insert_all_1_1_0/data.bin", 5),
        renamed("/t/tmp_insert_all_1_1_0", "/t/all_1_1_0"),
        synced("/t/all_1_1_0", 6),
    ]
    assert durable_parts(log(*steps)) == {"/t/all_1_1_0": 4}
    for left_out in (2, 3, 4):
        assert durable_parts(log(*steps[:left_out], *steps[left_out + 1 :])) == {}


@pytest.mark.release
@pytest.mark.clickhouse
def test_power_loss_loses_no_acknowledged_push(tmp_path: Path) -> None:
    trace = traced(tmp_path, 3.0)
    assert len(trace.acknowledged) > 10
    rng = random.Random(1)
    losses = [lose_power(trace, cut, rng) for cut in moments(trace, rng, 60)]
    assert [loss.missing for loss in losses if loss.missing] == []
    assert any(loss.without_sync for loss in losses)  # the check can fail
