"""Which clients, series and structures the template cache keeps, and which it evicts."""

from __future__ import annotations

from dataclasses import replace

from telemetry.decode.otlp import decode
from telemetry.decode.templates import Templates, template_of
from tests.telemetry.decode.template_bench import LIMITS, NOW_MS, PAYLOADS, PUSH, Bench, check, named, template_for


def test_each_client_has_series_of_its_own_and_they_share_the_template() -> None:
    bench = Bench()
    pushes = [replace(PUSH, client_instance_id=number.to_bytes(16)) for number in range(50)]
    for push in pushes:
        assert check(bench, PAYLOADS[0], push).match is None
    for push in pushes:
        assert check(bench, PAYLOADS[0], push).match is not None
    assert len(bench.decoder.templates) == 1


def test_series_that_are_not_known_any_longer_are_described_again() -> None:
    bench = Bench()
    bench.matches(PAYLOADS[0])
    bench.known.keep()
    assert bench.matches(PAYLOADS[0])
    bench.known.begin(NOW_MS + 3_600_000)
    outcome, _ = bench.take(replace(PUSH, payload=PAYLOADS[0]))
    assert outcome.match is None
    assert len(outcome.decoded.series) == len(outcome.decoded.points.value)
    assert bench.matches(PAYLOADS[0])


def test_a_client_that_sends_ever_new_structures_pushes_out_its_own() -> None:
    bench = Bench()
    for number in range(100, 1000):
        assert not bench.matches(named(f"metric-{number}"))
    assert len(bench.decoder.templates) == 1


def test_of_structures_that_never_come_again_few_are_learned() -> None:
    bench = Bench()
    for number in range(1000):
        push = replace(PUSH, payload=named(f"metric-{number}"), client_instance_id=number.to_bytes(16))
        assert bench.take(push)[0].match is None
    assert 256 <= len(bench.decoder.templates) <= 256 + 1000 // 16


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    decoded = decode(named("m"), PUSH, LIMITS, ())
    templates = Templates(100_000)
    for number in range(2000):
        payload = named(f"metric-{number}" + "x" * (number % 50))
        template = template_of(payload, decoded)
        assert template is not None
        for client in (b"one", b"other"):
            templates.keep(client, payload, template, decoded)
        templates.keep(b"used", named("m"), templates.known(named("m")) or template_for("m"), decoded)
        assert templates.nbytes <= 100_000
    assert templates.find(b"used", named("m")) is not None
    assert len(templates) < 200
    for number in range(2000):  # the rest is evicted when others are added
        payload = named("y" * (number + 60))
        templates.keep(b"last", payload, template_for("y" * (number + 60)), decoded)
    assert templates.find(b"used", named("m")) is None
    assert templates.nbytes <= 100_000
