"""PushSpool and the reader's turns: a flood waits behind itself."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exporters.model import ANONYMOUS, Connection, RecordKind
from exporters.spool.reader import SpoolReader
from exporters.spool.records import decode_push, encode_instance, is_heavy, push_origin, push_record, sender_bytes
from exporters.spool.writer import PushSpool, SpoolFull, SpoolWriter
from tests.exporters.spool.conftest import MIB, batches, begun, drain

PAYLOAD = bytes(500)


def connection(principal: str, address: str = "192.0.2.1", port: int = 1) -> Connection:
    return Connection("c", "PLAINTEXT", principal, address, port, "java", "4", 1)


def push(of: Connection, n: int = 0, payload: bytes = PAYLOAD) -> bytes:
    origin = push_origin(n.to_bytes(16, "big"), 7, False, 4, sender_bytes(of, "client"))
    return push_record(1_000, origin, payload)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def opener(directory: Path, max_bytes: int = 256 * MIB, **more: Any) -> Callable[[str], SpoolWriter]:
    return lambda name: SpoolWriter(directory, name, **{"segment_bytes": MIB, "max_bytes": max_bytes, **more})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Iterator[PushSpool]:
    with closing(PushSpool(opener(tmp_path), "pushes", clock)) as opened:
        yield opened


@pytest.fixture
def small_spool(tmp_path: Path) -> Iterator[PushSpool]:
    with closing(PushSpool(opener(tmp_path, 2 * MIB), "pushes", Clock())) as opened:
        yield opened


def sent(spool: PushSpool, of: Connection, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        spool.append(RecordKind.PUSH, push(of, n))
        if n % 64 == 0:
            spool.flush()
    spool.flush()


def writers(directory: Path) -> set[str]:
    return {path.name.split("-")[1] for path in directory.glob("*.spool")}


def order(reader: SpoolReader) -> list[str]:
    """The principals of the batches in the order in which they are served."""
    return [
        "+".join(sorted({decode_push(body).connection.principal for _, body in batch.records}))
        for batch in batches(reader, 10_000, 64 << 10)
    ]


def test_a_polite_payer_waits_for_one_batch_of_a_flood(tmp_path: Path, spool: PushSpool, reader: SpoolReader) -> None:
    """Without lanes its records lie behind all of the flood's in one segment."""
    sent(spool, connection("hostile"), 5_000)
    sent(spool, connection("polite"), 10)
    assert writers(tmp_path) == {"pushes", "pushes.heavy0"}
    served = order(reader)
    # Beside the flood's first records, which were sent before it was known as one.
    assert [n for n, principals in enumerate(served) if "polite" in principals][-1] <= 3
    assert len(served) > 30
    sent(spool, connection("hostile"), 5_000)
    batch = begun(reader, 10_000, 64 << 10)
    assert is_heavy(batch.writer)
    sent(spool, connection("polite"), 10)
    reader.commit(batch)
    assert order(reader)[:2] == ["polite", "hostile"]


def test_floods_are_served_in_turn_and_those_who_wait_are_not_forgotten(spool: PushSpool, reader: SpoolReader) -> None:
    for name in ("one", "two"):
        sent(spool, connection(name), 3_000)
    heavy = [name for name in order(reader) if name in ("one", "two")]
    for count in range(2, 20, 2):
        assert abs(heavy[:count].count("one") - count // 2) <= 1


def test_every_record_is_read_once_and_counted(spool: PushSpool, reader: SpoolReader, clock: Clock) -> None:
    numbers = itertools.count()
    for turn in range(40):
        clock.now_s += 0.5
        for principal, count in (("hostile", 300 if turn < 20 else 0), ("polite", 3)):
            for _ in range(count):
                spool.append(RecordKind.PUSH, push(connection(principal), next(numbers)))
        spool.append(RecordKind.INSTANCE, encode_instance(1, bytes(16), sender_bytes(connection("polite"), "c")))
        spool.flush()
    expected = next(numbers)
    assert spool.records == expected + 40
    spool.close()
    seen = [body for kind, body in drain(reader, max_records=100) if kind is RecordKind.PUSH]
    assert {decode_push(body).client_instance_id for body in seen} == {n.to_bytes(16, "big") for n in range(expected)}
    assert len(seen) == expected


def test_payer_that_becomes_quiet_joins_the_others_and_its_lane_is_used_again(
    tmp_path: Path, spool: PushSpool, reader: SpoolReader, clock: Clock
) -> None:
    sent(spool, connection("first"), 300)
    for _ in range(80):  # its lane's segment is closed, so that the reader can free it
        clock.now_s += 1.0
        sent(spool, connection("first"), 1)
    spool.sync()
    order(reader)
    assert writers(tmp_path) == {"pushes"}
    sent(spool, connection("second"), 300)
    assert writers(tmp_path) == {"pushes", "pushes.heavy0"}


def test_more_floods_than_lanes_share_them(tmp_path: Path, spool: PushSpool) -> None:
    for n in range(20):
        sent(spool, connection(f"hostile-{n}"), 300)
    assert len(writers(tmp_path)) == 9


def test_flood_leaves_room_in_the_spool_for_others(small_spool: PushSpool) -> None:
    with pytest.raises(SpoolFull):
        sent(small_spool, connection("hostile"), 10_000)
    small_spool.flush()
    sent(small_spool, connection("polite"), 200)
    with pytest.raises(SpoolFull):
        sent(small_spool, connection("second flood"), 10_000)
    sent(small_spool, connection("polite"), 20)


def test_flood_that_filled_its_part_is_served_again_once_that_is_read(
    tmp_path: Path, reader: SpoolReader, clock: Clock
) -> None:
    """While all its records are refused nothing is flushed, so the flush cannot be what notices the room."""
    spool = PushSpool(opener(tmp_path, 2 * MIB, segment_bytes=256 << 10, clock_s=clock), "pushes", clock)
    with pytest.raises(SpoolFull):
        sent(spool, connection("flood"), 10_000)
    spool.flush()
    spool.sync()
    order(reader)
    clock.now_s += 1.0
    sent(spool, connection("flood"), 100)
    spool.close()


def test_records_of_a_request_are_queued_all_or_none_in_their_lanes(small_spool: PushSpool) -> None:
    """A heavy payer's part may be full while the shared one has room."""
    with pytest.raises(SpoolFull):
        sent(small_spool, connection("hostile"), 10_000)
    small_spool.flush()
    before = small_spool.records
    with pytest.raises(SpoolFull):
        small_spool.append_all(RecordKind.PUSH, [push(connection("polite")), push(connection("hostile"))])
    small_spool.flush()
    assert small_spool.records == before
    small_spool.append_all(RecordKind.PUSH, [push(connection("polite"), n) for n in range(3)])
    with pytest.raises(SpoolFull):
        small_spool.append_all(RecordKind.PUSH, [push(connection("polite"), n) for n in range(10_000)])
    small_spool.flush()
    assert small_spool.records == before + 3


def test_payer_that_becomes_heavy_within_a_request_has_a_lane_afterwards(tmp_path: Path, spool: PushSpool) -> None:
    for _ in range(2):
        spool.append_all(RecordKind.PUSH, [push(connection("collector"), n) for n in range(300)])
        spool.flush()
    assert writers(tmp_path) == {"pushes", "pushes.heavy0"}
    assert spool.records == 600


BUSY, QUIET = (connection(ANONYMOUS, port=port) for port in (1, 2))  # two clients behind one address
LARGE = bytes(60_000)


def ports(reader: SpoolReader) -> list[set[int]]:
    """The source ports in each batch, in the order in which they are served."""
    return [
        {decode_push(body).connection.source_port for _, body in batch.records}
        for batch in batches(reader, 10_000, 64 << 10)
    ]


def test_connection_waits_for_one_batch_of_another_of_its_payer(
    tmp_path: Path, spool: PushSpool, reader: SpoolReader
) -> None:
    for n in range(40):
        spool.append(RecordKind.PUSH, push(BUSY, n, LARGE))
    spool.append_all(RecordKind.PUSH, [push(QUIET, 100)])
    spool.append(RecordKind.PUSH, push(QUIET, 101))
    spool.flush()
    assert writers(tmp_path) == {"pushes", "pushes.heavy0", "pushes.heavy0.quiet"}
    served = ports(reader)
    assert len(served) > 30
    assert max(n for n, ports in enumerate(served) if 2 in ports) <= 3
    for n in range(40):  # the same while the spool is being read
        spool.append(RecordKind.PUSH, push(BUSY, n, LARGE))
    spool.flush()
    batch = begun(reader, 10_000, 64 << 10)
    spool.append(RecordKind.PUSH, push(QUIET, 102))
    spool.flush()
    reader.commit(batch)
    assert ports(reader)[0] == {2}


def test_two_writers_do_not_give_a_payer_two_turns(tmp_path: Path, spool: PushSpool, reader: SpoolReader) -> None:
    for n in range(40):
        for port in (1, 1, 2 + n, 2 + n, 2 + n):
            spool.append(
                RecordKind.PUSH, push(connection(ANONYMOUS, port=port), n, LARGE if port == 1 else LARGE[:15_000])
            )
        spool.append(RecordKind.PUSH, push(connection("single"), n, LARGE))
    spool.flush()
    assert writers(tmp_path) == {"pushes", "pushes.heavy0", "pushes.heavy0.quiet", "pushes.heavy1"}
    served = [name for name in order(reader) if name in (ANONYMOUS, "single")][4:]
    assert abs(served[:30].count("single") - 15) <= 2


def test_connection_that_becomes_quiet_is_read_with_the_others_again(
    spool: PushSpool, reader: SpoolReader, clock: Clock
) -> None:
    for second in range(30):
        clock.now_s = float(second)
        for n in range(4 if second < 5 else 1):
            spool.append(RecordKind.PUSH, push(BUSY, n, LARGE if second < 5 else PAYLOAD))
        spool.append(RecordKind.PUSH, push(connection(ANONYMOUS, port=3), second, bytes(200_000)))
        spool.flush()
    by_writer: dict[str, int] = {}
    for batch in batches(reader, 10_000, 64 << 10):
        for _, body in batch.records:
            decoded = decode_push(body)
            if decoded.connection.source_port == 1 and len(decoded.payload) == len(PAYLOAD):
                by_writer[batch.writer] = by_writer.get(batch.writer, 0) + 1
    assert by_writer["pushes.heavy0.quiet"] >= 10


def test_quiet_connections_of_a_payer_are_of_its_part_of_the_spool(tmp_path: Path, clock: Clock) -> None:
    spool = PushSpool(opener(tmp_path, 4 * MIB, segment_bytes=256 << 10, clock_s=clock), "pushes", clock)
    with pytest.raises(SpoolFull, match="largest sender"):
        for n in range(4_000):  # a connection of its own for each push
            clock.now_s += 0.01
            spool.append(RecordKind.PUSH, push(connection(ANONYMOUS, port=n), n, LARGE[:20_000]))
            spool.flush()
    assert "pushes.heavy0.quiet" in writers(tmp_path)
    spool.append(RecordKind.PUSH, push(connection("polite"), 1))
    spool.close()
