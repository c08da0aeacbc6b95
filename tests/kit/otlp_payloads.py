"""OTLP metrics as messages and bytes: of ordinary clients, and hostile ones field by field."""

from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData, ResourceMetrics


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def in_metric(number: int, points: bytes) -> bytes:
    """`points`: the message in the fields Gauge (5), Histogram (9), ExponentialHistogram (10)."""
    return field(1, field(2, field(2, field(number, points))))


def array(items: int) -> bytes:
    return field(7, field(1, b"a") + field(2, field(5, field(1, b"") * items)))


def many_series(series: int, attributes: int, chars: int) -> MetricsData:
    """23 kB compressed once took 6.1 GB: the row of every series repeats the resource attributes."""
    data = MetricsData()
    resource_metrics = data.resource_metrics.add()
    for n in range(attributes):
        resource_metrics.resource.attributes.add(key=f"k{n}").value.string_value = "v" * chars
    metric = resource_metrics.scope_metrics.add().metrics.add(name="m")
    for n in range(series):
        point = metric.gauge.data_points.add(as_double=1.0)
        point.attributes.add(key="n").value.int_value = n
    return data


def attributes(**stated: Any) -> list[KeyValue]:
    return [
        KeyValue(key=name, value=AnyValue(**{f"{'int' if isinstance(value, int) else 'string'}_value": value}))
        for name, value in stated.items()
    ]


def resource(points: int = 1, of_points: Any = None, **stated: Any) -> ResourceMetrics:
    """Gauge points of one client; `of_points`: the attributes of each in turn."""
    made = ResourceMetrics()
    made.resource.attributes.extend(attributes(**stated))
    scope = made.scope_metrics.add()
    scope.scope.name = "scope"
    metric = scope.metrics.add(name="m", unit="1")
    for n in range(points):
        point = metric.gauge.data_points.add(time_unix_nano=n + 1, as_double=n)
        if of_points is not None:
            point.attributes.extend(attributes(**of_points[n]))
    return made
