"""Which clients, series and structures the caches of templates and of known series keep, and which they evict."""

import tracemalloc
from collections.abc import Container
from dataclasses import replace

import numpy as np
import pytest

from exporters.model import Push
from telemetry.decode import decoder
from telemetry.decode.bounds import PayloadLimits
from telemetry.decode.decoder import DecodedPush
from telemetry.decode.otlp import Decoded, decode
from telemetry.decode.series import KnownSeries, identity, owner
from telemetry.decode.templates import Templates, template_of
from telemetry.ingest.arrow_tables import series_table
from tests.telemetry.decode.payloads import LIMITS, NOW_MS, PAYLOADS, PUSH, Bench, check, named, template_for


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The instance ids of the pushes that are parsed."""
    instance_ids: list[bytes] = []

    def counted(payload: bytes, push: Push, limits: PayloadLimits, known_ids: Container[int]) -> Decoded:
        instance_ids.append(push.client_instance_id)
        return decode(payload, push, limits, known_ids)

    monkeypatch.setattr(decoder, "decode", counted)
    return instance_ids


def test_clients_share_a_template_but_not_series() -> None:
    bench = Bench()
    pushes = [replace(PUSH, client_instance_id=number.to_bytes(16)) for number in range(50)]
    assert check(bench, PAYLOADS[0], pushes[0]).match is None
    for push in pushes[1:]:  # the series of the second client are kept for all later ones
        outcome = check(bench, PAYLOADS[0], push)
        assert outcome.match is not None
        assert outcome.decoded.series == decode(PAYLOADS[0], push, LIMITS, ()).series
    for push in pushes:
        outcome = check(bench, PAYLOADS[0], push)
        assert outcome.match is not None
        assert not outcome.decoded.series
    assert len(bench.decoder.templates) == 1


def test_shared_template_describes_only_series_new_to_the_client() -> None:
    bench = Bench()
    for number in range(2):
        check(bench, PAYLOADS[0], replace(PUSH, client_instance_id=number.to_bytes(16)))
    third = replace(PUSH, client_instance_id=b"3" * 16)
    known_ids = [*decode(PAYLOADS[0], third, LIMITS, ()).series][::2]
    bench.known.add(identity(third), known_ids, NOW_MS)
    outcome = check(bench, PAYLOADS[0], third)
    assert outcome.match is not None
    expected = decode(PAYLOADS[0], third, LIMITS, frozenset(known_ids)).series
    assert outcome.decoded.series == expected
    assert expected


def test_fleet_that_comes_back_is_parsed_twice_however_large_it_is(parsed: list[bytes]) -> None:
    bench = Bench()
    pushes = [replace(PUSH, client_instance_id=number.to_bytes(16), payload=PAYLOADS[0]) for number in range(9)]
    for push in pushes:  # as KnownSeries.recall does after a restart
        bench.known.add(identity(push), [*decode(PAYLOADS[0], push, LIMITS, ()).series], NOW_MS)
    outcomes = [bench.take(push)[0] for push in pushes]
    assert parsed == [push.client_instance_id for push in pushes[:2]]
    assert not any(outcome.decoded.series for outcome in outcomes)
    assert [outcome.points for outcome in outcomes] == [outcomes[0].points] * len(pushes)


def test_structure_that_cannot_be_shared_is_parsed_once_more_and_not_at_each_push(parsed: list[bytes]) -> None:
    bench = Bench(PayloadLimits(text_bytes=1))
    pushes = [replace(PUSH, client_instance_id=bytes([n] * 16), payload=PAYLOADS[0]) for n in range(5)]
    for push in pushes:  # within the budget only because their series are known
        bench.known.add(identity(push), [*decode(PAYLOADS[0], push, LIMITS, ()).series], NOW_MS)
    outcomes = [bench.take(push)[0] for push in pushes]
    first, second, *later = (push.client_instance_id for push in pushes)
    assert parsed == [first, second, second, *later]
    assert all(outcome.points for outcome in outcomes)


def test_shared_series_produce_the_same_rows_as_decoding() -> None:
    bench = Bench()
    pushes = [replace(PUSH, client_id=f"app-{number}", payload=PAYLOADS[0]) for number in range(5)]
    outcomes = [bench.take(push)[0] for push in pushes]
    assert sum(outcome.match is not None for outcome in outcomes) == 4
    plain = [DecodedPush(push, decode(PAYLOADS[0], push, LIMITS, ()), len(PAYLOADS[0]), 0) for push in pushes]
    assert series_table(outcomes).to_pylist() == series_table(plain).to_pylist()


def test_shared_template_size_includes_its_series() -> None:
    templates = Templates(1 << 24)
    decoded = decode(PAYLOADS[0], PUSH, LIMITS, ())
    template, ids = template_of(PAYLOADS[0], decoded), np.array(decoded.points.series_id, np.uint64)
    assert template is not None
    for client in (b"one", b"other"):
        templates.keep(client, PAYLOADS[0], template, ids)
    templates.describe(template, decoded)
    assert template.described is not None
    assert templates.nbytes >= template.described.nbytes > len(decoded.series) * 500
    unshared = template_of(PAYLOADS[1], decode(PAYLOADS[1], PUSH, LIMITS, ()))
    assert unshared is not None
    templates.keep(b"one", PAYLOADS[1], unshared, ids)
    before = templates.nbytes
    for client in (b"one", b"other"):  # a template without users is deleted with its series
        templates.keep(client, PAYLOADS[0], template_of(PAYLOADS[0], decoded) or template, ids)
    assert templates.nbytes < before - template.described.nbytes + template.nbytes


def test_changing_structures_evict_only_the_clients_own_template() -> None:
    bench = Bench()
    for number in range(100, 1000):
        assert not bench.matches(named(f"metric-{number}"))
    assert len(bench.decoder.templates) == 1


def test_one_off_structures_are_rarely_learned() -> None:
    bench = Bench()
    for number in range(1000):
        push = replace(PUSH, payload=named(f"metric-{number}"), client_instance_id=number.to_bytes(16))
        assert bench.take(push)[0].match is None
    assert 256 <= len(bench.decoder.templates) <= 256 + 1000 // 16


def test_memory_is_bounded_and_used_templates_are_kept() -> None:
    decoded = decode(named("m"), PUSH, LIMITS, ())
    ids = np.array(decoded.points.series_id, np.uint64)
    templates = Templates(100_000)
    for number in range(2000):
        payload = named(f"metric-{number}" + "x" * (number % 50))
        template = template_of(payload, decoded)
        assert template is not None
        for client in (b"one", b"other"):
            templates.keep(client, payload, template, ids)
        templates.keep(b"used", named("m"), templates.find_of_any_client(named("m")) or template_for("m"), ids)
        assert templates.nbytes <= 100_000
    assert templates.find(b"used", named("m")) is not None
    assert len(templates) < 200
    for number in range(2000):  # the rest is evicted when others are added
        payload = named("y" * (number + 60))
        templates.keep(b"last", payload, template_for("y" * (number + 60)), ids)
    assert templates.find(b"used", named("m")) is None
    assert templates.nbytes <= 100_000


def written(known_series: KnownSeries, now_ms: int, client: bytes, *ids: int) -> None:
    known_series.begin(now_ms)
    known_series.add(client, ids, now_ms)
    assert known_series.keep() == len(ids)


def test_oldest_client_is_evicted_at_the_size_limit() -> None:
    known_series = KnownSeries(1000, 1000)  # two clients
    for client, *ids in ((b"a", 1, 2), (b"b", 3), (b"c", 2**64 - 1)):
        written(known_series, 0, client, *ids)
    assert [known_series.of(client).tolist() for client in (b"a", b"b", b"c")] == [[], [3], [2**64 - 1]]
    assert len(known_series) == 2


def test_clients_take_no_more_memory_than_they_are_counted() -> None:
    known_series = KnownSeries(1 << 20, 1000)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(500):
            client = owner("prod", "User:shop", f"checkout-{number}", f"{number:032x}")
            written(known_series, 0, client, *range(number * 12, number * 12 + 12))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * known_series.nbytes


def test_series_of_a_client_expire_together() -> None:
    known_series = KnownSeries(1 << 20, 10)
    written(known_series, 0, b"a", 1)
    written(known_series, 5, b"b", 2)
    written(known_series, 9, b"a", 3)
    known_series.begin(9)
    assert known_series.of(b"a").tolist() == [1, 3]
    known_series.begin(10)
    assert (known_series.of(b"a").tolist(), known_series.of(b"b").tolist(), len(known_series)) == ([], [2], 1)


def test_series_of_a_failed_batch_are_forgotten() -> None:
    known_series = KnownSeries(1 << 20, 10)
    written(known_series, 0, b"a", 1)
    known_series.begin(1)
    known_series.add(b"a", [2], 1)
    known_series.add(b"a", [3], 1)
    known_series.add(b"b", [4], 1)
    assert (known_series.of(b"a").tolist(), known_series.of(b"b").tolist()) == ([1, 2, 3], [4])
    known_series.begin(2)
    assert (known_series.of(b"a").tolist(), known_series.of(b"b").tolist(), len(known_series)) == ([1], [], 1)
    assert known_series.keep() == 0


def test_recalled_series_are_known_within_the_size_limit() -> None:
    known_series = KnownSeries(1000, 10)
    recalled = [(name, at_ms, np.array([n], np.uint64)) for n, (name, at_ms) in enumerate([(b"a", 0), (b"b", 5)])]
    known_series.recall([*recalled, recalled[0], (b"c", 6, recalled[0][2]), (b"d", 6, recalled[0][2])])
    assert [known_series.of(client).tolist() for client in (b"a", b"b", b"c", b"d")] == [[0], [1], [0], []]
    assert len(known_series) == 3
    known_series.begin(10)
    assert [known_series.of(client).tolist() for client in (b"a", b"b")] == [[], [1]]
    assert known_series.keep() == 0
