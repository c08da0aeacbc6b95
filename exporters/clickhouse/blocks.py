"""Arrow tables as the ArrowStream that ClickHouse reads. Sans-I/O."""

from __future__ import annotations

from binascii import hexlify
from typing import Any

import pyarrow as pa

from exporters.clickhouse.options import Compression


def arrow_stream(rows: pa.Table, compression: Compression) -> bytes:
    """`rows` with UUIDs (`fixed_size_binary(16)`) as text."""
    for n, field in enumerate(rows.schema):
        if _value_type(field.type) == pa.binary(16):
            rows = rows.set_column(n, field.name, _uuid_texts(rows.column(n)))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _uuid_texts(column: Any) -> Any:
    """32 hexadecimal digits per UUID, because ClickHouse 25.8 cannot read a UUID from 16 bytes."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    values = encoded.dictionary
    digits = hexlify(memoryview(values.buffers()[1])[16 * values.offset : 16 * (values.offset + len(values))])
    texts = pa.Array.from_buffers(pa.binary(32), len(values), [None, pa.py_buffer(digits)])
    return pa.DictionaryArray.from_arrays(encoded.indices, texts.cast(pa.binary()).cast(pa.string()))
