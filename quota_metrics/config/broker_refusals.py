"""The controller's validation of an alteration (ClientQuotaControlManager), and the resulting rules. Sans-I/O."""

import math
from collections.abc import Mapping

from exporters.model import QuotaKey
from quota_metrics.config.entities import IP, TYPES, Entity, QuotaAlteration, Rules

INVALID_REQUEST = 42

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")  # keys of users in Kafka's JSON that are no quotas
SCRAM_IS_IGNORED = "ignored, because SCRAM users and their passwords are for kafka-configs.sh to set"

_LONG, DOUBLE, _INT = "LONG", "DOUBLE", "INT"
KEYS_OF_CLIENTS: Mapping[str, str] = {
    QuotaKey.PRODUCER_BYTE_RATE.value: _LONG,
    QuotaKey.CONSUMER_BYTE_RATE.value: _LONG,
    QuotaKey.REQUEST_PERCENTAGE.value: DOUBLE,
    QuotaKey.CONTROLLER_MUTATION_RATE.value: DOUBLE,
}
KEYS_OF_IPS: Mapping[str, str] = {QuotaKey.CONNECTION_CREATION_RATE.value: _INT}
_LARGEST = {_LONG: float(2**63), _INT: float(2**31 - 1), DOUBLE: math.inf}
_ARTICLES = {_LONG: "a LONG", _INT: "an INT"}
_WHOLE_TO = 1e-6


def refusal(alteration: QuotaAlteration) -> str | None:
    """Kafka's message when it refuses the alteration (INVALID_REQUEST); None when it accepts it.

    Host names are not resolved. NaN, which Kafka accepts, is refused here.
    """
    names = dict(alteration.entity)
    if not names:
        return "Invalid empty client quota entity"
    for kind, name in alteration.entity:
        if kind not in TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if IP in names and len(names) > 1:
        return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"  # sic
    for key, value in alteration.values.items():
        number = (KEYS_OF_IPS if IP in names else KEYS_OF_CLIENTS).get(key)
        if value is None:
            continue
        if number is None:
            return f"Invalid configuration key {key}"
        if not value > 0.0:
            return f"Quota {key} must be greater than 0"
        if value > _LARGEST[number]:
            return f"Proposed value for {key} is too large for {_ARTICLES[number]}."
        if number != DOUBLE and math.fmod(value, 1.0) > _WHOLE_TO:
            return f"{key} cannot be a fractional value."
    return None


def altered(rules: Rules, *alterations: QuotaAlteration) -> dict[Entity, dict[str, float]]:
    """The rules after the changes, without entities that have no values."""
    changed = {entity: dict(values) for entity, values in rules.items()}
    for alteration in alterations:
        values = changed.setdefault(alteration.entity, {})
        for key, value in alteration.values.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
    return {entity: values for entity, values in changed.items() if values}
