from __future__ import annotations

import gzip
import io
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from exporters.clickhouse.errors import Code
from exporters.clickhouse.sql_body import Body, form_fields
from exporters.clickhouse.sql_statement import StatementError

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "lz4": lz4.frame.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
}


def read_all(body: Body) -> bytes:
    return b"".join(iter(lambda: body.read(1000), b""))


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_body_of_many_frames(encoding: str) -> None:
    # clickhouse-connect sends one frame per block.
    frames = [b"a" * 3000, b"", b"b" * 10]
    encoded = b"".join(map(ENCODERS[encoding], frames))
    assert read_all(Body(io.BytesIO(encoded), encoding, 10_000)) == b"".join(frames)


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_bomb_is_stopped_at_the_limit(encoding: str) -> None:
    body = Body(io.BytesIO(ENCODERS[encoding](bytes(50 << 20))), encoding, 1 << 20)
    with pytest.raises(StatementError) as refused:
        read_all(body)
    assert refused.value.code is Code.QUERY_IS_TOO_LARGE


@pytest.mark.parametrize("encoding", [encoding for encoding in ENCODERS if encoding])
def test_damage(encoding: str) -> None:
    with pytest.raises(StatementError) as refused:
        read_all(Body(io.BytesIO(b"no such frame"), encoding, 10_000))
    assert refused.value.code is Code.CANNOT_DECOMPRESS


def test_an_unknown_encoding() -> None:
    with pytest.raises(StatementError) as refused:
        Body(io.BytesIO(), "br", 10_000)
    assert refused.value.code is Code.CANNOT_DECOMPRESS


def part(name: str, value: bytes, more: str = "") -> bytes:
    return b'--x\r\nContent-Disposition: form-data; name="' + f'{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def test_form_fields() -> None:
    body = part("query", b"SELECT {a:String}") + part("param_a", "ü\n'".encode()) + b"--x--\r\n"
    found = form_fields("multipart/form-data; boundary=x", body)
    assert found == {"query": "SELECT {a:String}", "param_a": "ü\n'"}


def test_a_file_in_a_form_is_refused() -> None:
    with pytest.raises(StatementError) as refused:
        form_fields("multipart/form-data; boundary=x", part("t", b"1", '; filename="t"') + b"--x--\r\n")
    assert refused.value.code is Code.NOT_IMPLEMENTED


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=x", "text/plain"])
def test_rubbish_holds_no_fields(content_type: str) -> None:
    assert form_fields(content_type, b"\xff\x00 rubbish") == {}
