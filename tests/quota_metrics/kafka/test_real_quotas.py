"""Quotas on a real broker: each filter beside Kafka's own Admin, kafka-configs.sh in both directions, each refusal.

Values are so large that no client of the shared broker is throttled; all are removed at the end.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headroom.cli.cluster import asked
from headroom.cli.quotas.commands import app
from headroom.demo.broker import LocalCluster
from headroom.demo.jvm import Jvm
from quota_metrics.config.broker_refusals import refusal
from quota_metrics.config.entities import (
    Altered,
    Entity,
    FilterComponent,
    MatchType,
    QuotaAlteration,
    entity_of,
    matches,
)
from quota_metrics.kafka.admin import KafkaAdmin
from quota_metrics.kafka.errors import RefusedError
from tests.kit.kafka.quota_files import kafka_configs

pytestmark = [pytest.mark.kafka, pytest.mark.java]

MANY = 1e12
# The set of ClientQuotasRequestTest: every kind of entity, including names with spaces.
ENTITIES = [
    *(entity_of({"user": user}) for user in ("quota user 1", "quota-user-2", None)),
    *(entity_of({"client-id": client_id}) for client_id in ("quota-client-1", "quota-client-2", None)),
    *(
        entity_of({"user": user, "client-id": client_id})
        for user in ("quota user 1", None)
        for client_id in ("quota-client-1", None)
    ),
    entity_of({"user": "quota-user-2", "client-id": "quota-client-1"}),
]
IP_ENTITIES = [entity_of({"ip": "1.2.3.4"}), entity_of({"ip": None})]


def asking(kafka: LocalCluster, ask: Callable[[KafkaAdmin], Coroutine[Any, Any, Any]]) -> Any:
    return asked(ask, kafka.bootstrap, None, 60_000)


def alter(kafka: LocalCluster, *alterations: QuotaAlteration, validate_only: bool = False) -> list[Altered]:
    results: list[Altered] = asking(
        kafka, lambda admin: admin.alter_client_quotas(alterations, validate_only=validate_only)
    )
    return results


async def until(
    admin: KafkaAdmin, done: Callable[[dict[Entity, dict[str, float]]], bool]
) -> dict[Entity, dict[str, float]]:
    """The quotas once the broker has followed its controller."""
    async with asyncio.timeout(90):
        while True:
            quotas = await admin.describe_client_quotas()
            if done(quotas):
                return quotas


@pytest.fixture(scope="module")
def configured(kafka: LocalCluster) -> Iterator[dict[Entity, dict[str, float]]]:
    values = {entity: {"producer_byte_rate": MANY + number} for number, entity in enumerate(ENTITIES)}
    values |= {entity: {"connection_creation_rate": 2e9 + number} for number, entity in enumerate(IP_ENTITIES)}
    results = alter(kafka, *(QuotaAlteration(entity, value) for entity, value in values.items()))
    assert {result.error_code for result in results} == {0}
    assert {result.entity for result in results} == set(values)
    asking(kafka, lambda admin: until(admin, lambda quotas: values.keys() <= quotas.keys()))
    yield values
    removed = [QuotaAlteration(entity, dict.fromkeys(value, None)) for entity, value in values.items()]
    assert {result.error_code for result in alter(kafka, *removed)} == {0}


def java_described(
    jvm: Jvm, admin: Any, components: list[FilterComponent], strict: bool
) -> dict[Entity, dict[str, float]]:
    quota = jvm.classes.org.apache.kafka.common.quota
    component = quota.ClientQuotaFilterComponent
    made = [
        component.ofEntity(kind, name)
        if match is MatchType.EXACT
        else component.ofDefaultEntity(kind)
        if match is MatchType.DEFAULT
        else component.ofEntityType(kind)
        for kind, match, name in components
    ]
    wanted = quota.ClientQuotaFilter.containsOnly(made) if strict else quota.ClientQuotaFilter.contains(made)
    entities = admin.describeClientQuotas(wanted).entities().get()
    return {
        entity_of({str(kind): entity.entries()[kind] for kind in entity.entries()}): {
            str(key): entities[entity][key] for key in entities[entity]
        }
        for entity in entities
    }


def filters() -> Iterator[list[FilterComponent]]:
    users = [None, *_each("user", "quota user 1", "nobody")]
    client_ids = [None, *_each("client-id", "quota-client-1", "nobody")]
    for user, client_id in itertools.product(users, client_ids):
        yield [component for component in (user, client_id) if component is not None]
    yield from ([component] for component in _each("ip", "1.2.3.4", "4.3.2.1"))


def _each(kind: str, *names: str) -> list[FilterComponent]:
    exact = [FilterComponent(kind, MatchType.EXACT, name) for name in names]
    return [*exact, FilterComponent(kind, MatchType.DEFAULT), FilterComponent(kind, MatchType.ANY)]


def test_filters_match_kafkas_admin(kafka: LocalCluster, jvm: Jvm, configured: dict[Entity, dict[str, float]]) -> None:
    java_admin = jvm.admin(kafka.bootstrap)

    async def compare(admin: KafkaAdmin) -> int:
        compared = 0
        for components, strict in itertools.product(filters(), (False, True)):
            ours = await admin.describe_client_quotas(components, strict=strict)
            assert ours == java_described(jvm, java_admin, components, strict), (components, strict)
            by_rule = {
                entity: value for entity, value in configured.items() if matches(entity, components, strict=strict)
            }
            assert {entity: value for entity, value in ours.items() if entity in configured} == by_rule
            compared += 1
        return compared

    with closing(java_admin):
        assert asking(kafka, compare) == 2 * (5 * 5 + 4)


def test_invalid_filter_is_refused_by_the_broker(kafka: LocalCluster) -> None:
    with pytest.raises(RefusedError, match="Unsupported entity type other") as caught:
        asking(kafka, lambda admin: admin.describe_client_quotas([FilterComponent("other", MatchType.ANY)]))
    assert caught.value.code == 35


BAD_ALTERATIONS: list[tuple[dict[str, str | None], dict[str, float | None], str]] = [
    ({}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
    ({"group": "x"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
    ({"": "x"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: "),
    ({"user": ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
    ({"client-id": ""}, {"producer_byte_rate": 1.0}, "Empty client-id not supported"),
    ({"user": "u", "ip": "1.2.3.4"}, {"producer_byte_rate": 1.0}, "IP entity shouldnot be combined"),
    ({"ip": "no address"}, {"connection_creation_rate": 1.0}, "no address is not a valid IP or resolvable host."),
    ({"user": "u"}, {"bad": 1.0}, "Invalid configuration key bad"),
    ({"ip": "1.2.3.4"}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
    ({"user": "u"}, {"producer_byte_rate": 0.0}, "Quota producer_byte_rate must be greater than 0"),
    ({"user": "u"}, {"producer_byte_rate": -2.0}, "Quota producer_byte_rate must be greater than 0"),
    ({"user": "u"}, {"producer_byte_rate": 36893488147419103232.4}, "is too large for a LONG."),
    ({"ip": "1.2.3.4"}, {"connection_creation_rate": 2.0**31}, "is too large for an INT."),
    ({"user": "u"}, {"producer_byte_rate": 2.245}, "producer_byte_rate cannot be a fractional value."),
]


def test_offline_validation_refuses_as_the_controller(kafka: LocalCluster) -> None:
    for names, values, message in BAD_ALTERATIONS:
        alteration = QuotaAlteration(entity_of(names), values)
        (result,) = alter(kafka, alteration)
        assert (result.entity, result.error_code) == (alteration.entity, 42)
        assert message in str(result.error_message)
        if "resolvable" not in message:  # which takes a look-up
            assert refusal(alteration) == result.error_message


def test_offline_validation_accepts_as_the_controller(kafka: LocalCluster) -> None:
    for values in (
        {"producer_byte_rate": 1235.0000001},
        {"request_percentage": 56.62367},
        {"request_percentage": float("inf")},
        {"controller_mutation_rate": 1e-7},
        {"producer_byte_rate": 2.0**63},
        {"nothing": None},
    ):
        alteration = QuotaAlteration(entity_of({"user": "u"}), values)
        (result,) = alter(kafka, alteration, validate_only=True)
        assert (result.error_code, refusal(alteration)) == (0, None)


def headroom(kafka: LocalCluster, command: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, [command, "--bootstrap-server", kafka.bootstrap, *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_kafka_configs_and_headroom_see_each_others_changes(kafka: LocalCluster, java: str, kafka_libs: Path) -> None:
    ours = ["--names", "user=of headroom", "--defaults", "client-id"]
    assert headroom(kafka, "alter", *ours, "--add", "producer_byte_rate=1e12,request_percentage=1234.5") == ""
    reported = kafka_configs(
        kafka, java, kafka_libs, "--describe", "--entity-type", "users", "--entity-name", "of headroom",
        "--entity-type", "clients", "--entity-default",
    )  # fmt: skip
    assert "producer_byte_rate=1.0E12" in reported
    assert "request_percentage=1234.5" in reported

    kafka_configs(
        kafka, java, kafka_libs, "--alter", "--entity-type", "users", "--entity-name", "of headroom",
        "--entity-type", "clients", "--entity-default",
        "--add-config", "consumer_byte_rate=2000000000000", "--delete-config", "request_percentage",
    )  # fmt: skip
    asking(kafka, lambda admin: until(admin, lambda quotas: any("consumer_byte_rate" in v for v in quotas.values())))
    assert headroom(kafka, "describe", *ours) == (
        "{user=of%20headroom, client-id=<default>}\n"
        "consumer_byte_rate=2000000000000\n"
        "producer_byte_rate=1000000000000\n"
    )
    resolved = headroom(kafka, "resolve", "--user", "of headroom", "--client-id", "any")
    assert "consumer_byte_rate=2000000000000 {user=of%20headroom, client-id=<default>}\n" in resolved
    assert headroom(kafka, "alter", *ours, "--delete", "producer_byte_rate,consumer_byte_rate") == ""


def test_alteration_that_is_refused_or_only_validated_changes_nothing(kafka: LocalCluster) -> None:
    """The broker itself validates: it refuses what it would refuse."""

    def run(values: str, *flags: str) -> tuple[int, str, str]:
        address = ["--bootstrap-server", kafka.bootstrap]
        result = CliRunner().invoke(app, ["alter", *address, "--user", "unchanged", "--add", values, *flags])
        return result.exit_code, result.stdout, result.stderr

    refused = "headroom: the change of {user=unchanged} was refused with INVALID_REQUEST (42): "
    half = run("consumer_byte_rate=1e12,bad=1")
    assert half == (1, "", f"{refused}Invalid configuration key bad\n")
    assert run("producer_byte_rate=1e12", "--validate-only") == (0, "", "")
    negative = run("producer_byte_rate=-1", "--validate-only")
    assert negative == (1, "", f"{refused}Quota producer_byte_rate must be greater than 0\n")
    assert headroom(kafka, "describe", "--match", "unchanged") == ""
