"""Bytes or JSON to an OTLP ExportMetricsServiceRequest. Sans-I/O.

A request of a collector has the metrics of many senders. The parts that cannot be parsed are left out, down to single
data points, and the rest is taken (partial success). Texts that are not UTF-8 get replacement characters. The request
is an error if no part of it can be parsed.
"""

import contextlib
import json
from typing import Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from quota_metrics.kafka.primitives import write_uvarint
from telemetry.decode.bounds import DecodeError as StructureError
from telemetry.decode.bounds import OverBudget, PayloadLimits, check_outline, encoded_fields, over_budget
from telemetry.decode.lenient import LenientReader

_MAX_JSON_DEPTH = 32
# Checked before anything is allocated: two bytes can become an object of a hundred. Requests of collectors are below.
_REQUEST = PayloadLimits(points=500_000, pairs=250_000)
_MAX_JSON_OBJECTS, _MAX_JSON_VALUES = 500_000, 2_000_000
_LENGTH_DELIMITED: Final = 2  # protobuf's wire type of an embedded message
_READER: Final = LenientReader(ExportMetricsServiceRequest)


class OtlpError(ValueError):
    """The request is invalid; the sender must not retry it."""


class ParsedRequest(NamedTuple):
    """`left_out`: data points that cannot be parsed. A larger piece counts as one, if nothing in it can be parsed."""

    message: Any
    has_replaced_texts: bool = False
    left_out: int = 0


def parse_protobuf(body: bytes) -> ParsedRequest:
    """Raises OtlpError."""
    try:
        try:
            return _read(body, 0)
        except (DecodeError, StructureError):
            return _read(*_ReadableParts().of(body, _READER.with_bytes.DESCRIPTOR))
    except OverBudget as exc:
        raise OtlpError(str(exc)) from exc
    except (DecodeError, StructureError) as exc:
        raise OtlpError(f"cannot parse {len(body)} bytes as ExportMetricsServiceRequest") from exc


def parse_json(body: bytes) -> ParsedRequest:
    """Parses OTLP/JSON: protobuf's JSON mapping, unknown fields ignored. Raises OtlpError."""
    if body.count(b"{") > _MAX_JSON_OBJECTS or body.count(b",") > _MAX_JSON_VALUES:
        raise OtlpError(f"more than {_MAX_JSON_OBJECTS} objects or {_MAX_JSON_VALUES} values in JSON")
    with contextlib.suppress(json_format.ParseError, ValueError, RecursionError):
        return ParsedRequest(_from_json(body.decode()))
    try:
        document = json.loads(body.decode("utf-8", "replace"))
        # An escape may be half of a pair, which is no character.
        plain = json.dumps(document, ensure_ascii=False).encode("utf-16-le", "surrogatepass")
        text = plain.decode("utf-16-le", "replace")
        kept, left_out = _json_parts(json.loads(text), ExportMetricsServiceRequest.DESCRIPTOR)
        request = _from_json(json.dumps(kept))
        if left_out and not request.resource_metrics:
            raise ValueError("nothing is left")
    except (json_format.ParseError, ValueError, RecursionError) as exc:
        raise OtlpError(f"cannot parse {len(body)} bytes as ExportMetricsServiceRequest in JSON") from exc
    return ParsedRequest(request, "\N{REPLACEMENT CHARACTER}" in text, left_out)


def _read(body: bytes, left_out: int) -> ParsedRequest:
    check_outline(body, _REQUEST)
    read = _READER.read(body)
    if left_out and not read.message.resource_metrics:
        raise DecodeError
    return ParsedRequest(read.message, read.replaced > 0, left_out)


def _divisible(descriptor: Any) -> dict[int, Any]:
    """The fields that hold the messages between the request and its data points, by number."""
    if descriptor.name.endswith("DataPoint"):
        return {}
    return {
        field.number: field
        for field in descriptor.fields
        if field.message_type is not None and (field.name in _BETWEEN or field.containing_oneof is not None)
    }


_BETWEEN: Final = ("resource_metrics", "scope_metrics", "metrics", "data_points")


class _ReadableParts:
    """Of one request, within a budget of fields that are looked at."""

    def __init__(self) -> None:
        self._left_fields = _REQUEST.points

    def of(self, data: bytes, descriptor: Any) -> tuple[bytes, int]:
        """The message without the parts that cannot be parsed, and how many these are.

        Raises DecodeError or StructureError when it cannot be parsed without its parts either, and OverBudget.
        """
        message_class, parts = GetMessageClass(descriptor), _divisible(descriptor)
        with contextlib.suppress(DecodeError, StructureError):
            check_outline(data, _REQUEST, descriptor)
            message_class.FromString(data)
            return data, 0
        kept, left_out = [], 0
        for field in encoded_fields(data):
            self._left_fields -= 1
            if self._left_fields < 0:
                raise over_budget("fields", _REQUEST.points)
            if field.content is None or field.number not in parts:
                kept.append(data[field.start : field.end])
                continue
            try:
                part, lost = self.of(data[field.content : field.end], parts[field.number].message_type)
            except (DecodeError, StructureError):
                left_out += 1
            else:
                left_out += lost
                head = bytearray((field.number << 3 | _LENGTH_DELIMITED,))  # numbers are below 16
                write_uvarint(head, len(part))
                kept.append(bytes(head) + part)
        rest = b"".join(kept)
        check_outline(rest, _REQUEST, descriptor)
        message_class.FromString(rest)
        return rest, left_out


def _from_json(text: str) -> Any:
    return json_format.Parse(
        text, ExportMetricsServiceRequest(), ignore_unknown_fields=True, max_recursion_depth=_MAX_JSON_DEPTH
    )


def _json_parts(value: Any, descriptor: Any) -> tuple[Any, int]:
    """Does for a message in JSON what _ReadableParts.of does for bytes. Raises ParseError, ValueError."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    message_class = GetMessageClass(descriptor)
    with contextlib.suppress(json_format.ParseError, ValueError):
        json_format.ParseDict(value, message_class(), ignore_unknown_fields=True, max_recursion_depth=_MAX_JSON_DEPTH)
        return value, 0
    kept, left_out = dict(value), 0
    for field in _divisible(descriptor).values():
        for name in (field.json_name, field.name):
            if name not in kept:
                continue
            parts = []
            for part in kept[name] if isinstance(kept[name], list) else [kept[name]]:
                try:
                    rest, lost = _json_parts(part, field.message_type)
                except (json_format.ParseError, ValueError):
                    left_out += 1
                else:
                    left_out += lost
                    parts.append(rest)
            if isinstance(kept[name], list):
                kept[name] = parts
            elif parts:
                [kept[name]] = parts
            else:
                del kept[name]
    json_format.ParseDict(kept, message_class(), ignore_unknown_fields=True, max_recursion_depth=_MAX_JSON_DEPTH)
    return kept, left_out
