"""Reads protobuf whose texts need not be UTF-8. Sans-I/O.

protobuf refuses a whole message for one such text (a `client.rack` in Latin-1). Clients in C and Go send what they were
configured with, and collectors in Go pass it on. Their texts get replacement characters here, as Java and Python decode
them; the rest of the message stays as it is.
"""

from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData


class Read(NamedTuple):
    """A message, and how many of its texts were not UTF-8."""

    message: Any
    replaced: int


class LenientReader:
    def __init__(self, message_class: Any) -> None:
        self._class = message_class
        self._texts: set[str] = set()  # full names of fields
        pool = DescriptorPool()
        self._add(message_class.DESCRIPTOR.file, pool, set())
        self.with_bytes = GetMessageClass(pool.FindMessageTypeByName(message_class.DESCRIPTOR.full_name))
        """The same messages with bytes for texts."""

    def read(self, data: bytes) -> Read:
        """Raises google.protobuf.message.DecodeError if the bytes are no such message, whatever its texts."""
        try:
            return Read(self._class.FromString(data), 0)
        except ProtobufError:
            message = self.with_bytes.FromString(data)
            replaced = self._replace(message)  # 0 when a later text of the same field is the one that counts
            return Read(self._class.FromString(message.SerializeToString()), replaced)

    def _add(self, file: Any, pool: DescriptorPool, added: set[str]) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for needed in file.dependencies:
            self._add(needed, pool, added)
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        for message in copy.message_type:
            self._bytes_for_texts(message, f"{copy.package}.{message.name}")
        pool.Add(copy)

    def _bytes_for_texts(self, message: DescriptorProto, name: str) -> None:
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_STRING:
                field.type = FieldDescriptorProto.TYPE_BYTES
                self._texts.add(f"{name}.{field.name}")
        for nested in message.nested_type:
            self._bytes_for_texts(nested, f"{name}.{nested.name}")

    def _replace(self, message: Any) -> int:
        """Number of replaced texts."""
        replaced = 0
        for field, value in message.ListFields():
            if field.message_type is not None:
                replaced += sum(map(self._replace, (value,) if isinstance(value, Message) else value))
            elif field.full_name not in self._texts:
                continue
            elif isinstance(value, bytes):
                if (text := value.decode("utf-8", "replace").encode()) != value:
                    setattr(message, field.name, text)
                    replaced += 1
            else:
                texts = [text.decode("utf-8", "replace").encode() for text in value]
                replaced += sum(text != before for text, before in zip(texts, value, strict=True))
                value[:] = texts
        return replaced


METRICS: Final = LenientReader(MetricsData)
