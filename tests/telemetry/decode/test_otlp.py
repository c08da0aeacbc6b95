"""Each OTLP kind, and unusual or invalid payloads of real and hostile clients."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from exporters.model import Push
from telemetry.decode.bounds import OverBudget, PayloadLimits
from telemetry.decode.otlp import MAX_FUTURE_MS, MAX_PAST_MS
from tests.telemetry.decode.payloads import (
    CONNECTION,
    NOW_MS,
    NOW_NS,
    PUSH,
    attributes,
    counter,
    decoded,
    gauge,
    number,
    text,
)


def test_gauge_and_sum_become_points_and_series() -> None:
    start = NOW_NS - 5_000 * 1_000_000
    rows = decoded(
        gauge(number(as_double=2.5), unit="ms"), counter(number(as_int=7, start_time_unix_nano=start), temporality=2)
    )
    points = rows.points
    assert points.metric == ["g", "s"]
    assert points.ts_ms == [NOW_MS, NOW_MS]
    assert points.value == [2.5, 7.0]
    assert points.int_value == [None, None]
    assert points.flags == [0, 0]
    assert points.interval_ms == [0, 5_000]
    level, total = (rows.series[id_] for id_ in points.series_id)
    assert level[:5] == ("g", "gauge", "unspecified", False, "ms")
    assert total[:5] == ("s", "sum", "cumulative", True, "")
    assert level.resource == (("client_rack", "r1"),)
    assert (level.scope_name, level.scope_version) == ("scope", "1.0")


def test_missing_value_is_nan_not_zero() -> None:
    points = decoded(
        gauge(
            number(as_double=math.nan),
            number(as_double=0.0),
            number(),
            number(as_double=5.0, flags=1),
            number(as_int=0, flags=1),
        )
    ).points
    assert [math.isnan(value) for value in points.value] == [True, False, True, True, True]
    assert points.flags == [0, 0, 1, 1, 1]


def test_integers_stay_exact() -> None:
    values = [2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), -1]
    points = decoded(gauge(*(number(as_int=value) for value in values))).points
    assert points.int_value == [None, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), None]
    assert points.value == [float(value) for value in values]


def test_out_of_range_timestamp_is_clamped_to_receive_time() -> None:
    inside = [NOW_MS - MAX_PAST_MS, NOW_MS + MAX_FUTURE_MS]
    outside_ns = [0, (inside[0] - 1) * 1_000_000, (inside[1] + 1) * 1_000_000, 2**63 + 5, 2**64 - 1]
    rows = decoded(
        gauge(*(number(ts_ms * 1_000_000, as_int=1) for ts_ms in inside), *(number(ns, as_int=1) for ns in outside_ns))
    )
    assert rows.points.ts_ms == inside + [NOW_MS] * len(outside_ns)
    assert rows.clamped_timestamps == len(outside_ns)


def test_interval_comes_from_client_timestamps_and_is_bounded() -> None:
    def interval_ms(start_ns: int, ns: int = NOW_NS) -> int:
        return decoded(counter(number(ns, as_int=1, start_time_unix_nano=start_ns))).points.interval_ms[0]

    assert interval_ms(NOW_NS - 1_999_999) == 1
    assert interval_ms(0) == 0
    assert interval_ms(NOW_NS + 1) == 0
    assert interval_ms(1) == 2**32 - 1
    assert interval_ms(2**63, 2**63 + 60_000_000_000) == 60_000


def test_series_id_depends_on_identity_metric_and_attributes() -> None:
    def ids(*metrics: Metric, push: Push = PUSH) -> list[int]:
        return decoded(*metrics, push=push).points.series_id

    both = (text("topic", "t"), text("partition", "0"))
    [id_] = ids(gauge(number(as_int=1, attributes=both)))
    assert ids(gauge(number(as_int=2, attributes=both[::-1]))) == [id_]
    assert id_ == 14425545219752142001, "ids are stored: they must never change"
    point = number(as_int=1, attributes=both)
    others = [
        ids(gauge(point, name="other")),
        ids(gauge(number(as_int=1, attributes=both[:1]))),
        ids(counter(point)),
        ids(counter(point, temporality=2)),
        ids(gauge(point), push=replace(PUSH, client_instance_id=bytes(16))),
        ids(gauge(point), push=replace(PUSH, client_id="app-2")),
        ids(gauge(point), push=replace(PUSH, connection=replace(CONNECTION, principal="mallory"))),
        ids(gauge(point), push=replace(PUSH, connection=replace(CONNECTION, cluster="dev"))),
        ids(gauge(number(as_int=1, attributes=[text("topic", 't","partition'), text("x", "0")]))),
    ]
    assert len({id_, *(other[0] for other in others)}) == 1 + len(others)


def test_known_series_are_not_described_again() -> None:
    metrics = gauge(number(as_int=1), number(as_int=2, attributes=[text("topic", "t")]))
    everything = decoded(metrics)
    assert len(everything.series) == 2
    rest = decoded(metrics, known_ids={everything.points.series_id[0]})
    assert set(rest.series) == {everything.points.series_id[1]}
    assert rest.points == everything.points


def test_attribute_values_of_any_type_become_text() -> None:
    nested = AnyValue(
        array_value=ArrayValue(
            values=[
                AnyValue(int_value=1),
                AnyValue(double_value=-math.inf),
                AnyValue(),
                AnyValue(kvlist_value=KeyValueList(values=[text("k", 'v"')])),
            ]
        )
    )
    pairs = [
        text("s", "plain"),
        KeyValue(key="i", value=AnyValue(int_value=-(2**63))),
        KeyValue(key="d", value=AnyValue(double_value=1.5)),
        KeyValue(key="nan", value=AnyValue(double_value=math.nan)),
        KeyValue(key="t", value=AnyValue(bool_value=True)),
        KeyValue(key="f", value=AnyValue(bool_value=False)),
        KeyValue(key="b", value=AnyValue(bytes_value=b"\x00\xff")),
        KeyValue(key="a", value=nested),
        KeyValue(key="none"),
    ]
    assert attributes(*pairs) == {
        "s": "plain",
        "i": "-9223372036854775808",
        "d": "1.5",
        "nan": "NaN",
        "t": "true",
        "f": "false",
        "b": "AP8=",
        "a": '[1,"-Infinity",null,{"k":"v\\""}]',
        "none": "",
    }


def test_attribute_dialects_are_normalized_and_first_spelling_wins() -> None:
    librdkafka = attributes(KeyValue(key="node.id", value=AnyValue(int_value=1)), text("member_id", "m"))
    assert librdkafka == {"node_id": "1", "member_id": "m"}
    assert attributes(text("node_id", "node-1"), text("group_member_id", "m")) == {
        "node_id": "node-1",
        "member_id": "m",
    }
    assert attributes(text("node.id", "first"), text("node-id", "second")) == {"node_id": "first"}


def test_payload_attributes_do_not_change_identity() -> None:
    forged = [text("client_id", "victim"), text("principal", "root"), text("cluster", "other")]
    [series] = decoded(gauge(number(as_int=1, attributes=forged))).series.values()
    assert dict(series.attributes) == {"client_id": "victim", "principal": "root", "cluster": "other"}
    assert not {"client_id", "principal", "cluster", "client_instance_id"} & set(series._fields)


def test_limits_truncate_texts_and_refuse_too_many_points() -> None:
    pairs = [text(f"k{n}" + "x" * 50, "v" * 50) for n in range(9)]
    cut = attributes(*pairs, limits=PayloadLimits(attributes=3, chars=10))
    assert cut == {f"k{n}xxxxxxxx": "v" * 10 for n in range(3)}
    long_name = decoded(gauge(number(as_int=1), name="n" * 50, unit="u" * 50), limits=PayloadLimits(chars=10))
    assert long_name.points.metric == ["n" * 10]
    assert next(iter(long_name.series.values())).unit == "u" * 10
    three = gauge(*(number(as_int=n) for n in range(3)))
    assert len(decoded(three, limits=PayloadLimits(points=3)).points.value) == 3
    with pytest.raises(OverBudget):
        decoded(three, gauge(number(as_int=1)), limits=PayloadLimits(points=3))
