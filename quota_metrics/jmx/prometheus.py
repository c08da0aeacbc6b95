"""Reads quota sensors from the output of the Prometheus JMX exporter. Sans-I/O.

Clean names are those of deploy/jmx/kafka-quotas.yml and of the exporter's kafka-2_0_0.yml, with the usual variants of
labels: kafka_server_quota_byte_rate{resource="Produce",user="alice",clientId="app"}. The exporter's rules for KRaft
mangle them to kafka_server_produce_user_alice_client_id_app_byte_rate, lower case, with `_` for every character
not allowed in metric names. Such a name cannot be decoded; it is accepted if it matches exactly one known client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from quota_metrics.config.entities import sanitize
from quota_metrics.jmx.sensors import BEANS, SensorReading, SensorTable

_ATTRIBUTES = "byte_rate|request_time|mutation_rate|throttle_time"
_OURS = re.compile(rb"^kafka_server_(?:quota|produce|fetch|request|controllermutation)_[^\n]*$", re.I | re.M)
_CLEAN = re.compile(rf"kafka_server_quota_({_ATTRIBUTES})(?:_ms)?", re.I)
_MANGLED = re.compile(
    rf"kafka_server_(produce|fetch|request|controllermutation)((?:_user_.+?)?(?:_client_id_.+)?)_({_ATTRIBUTES})", re.I
)
_NOT_IN_A_NAME = re.compile("[^a-z0-9]+")

_BEAN_OF = {bean.lower(): bean for bean in BEANS}
_ALIASES = {"resource": "resource", "type": "resource", "quotatype": "resource", "user": "user", "clientid": "clientid"}


def read_exposition(body: bytes, known: Iterable[tuple[str, str]] = ()) -> SensorReading:
    """The quota sensors in an exposition; other lines are ignored. Never raises.

    `known`: the pairs of user and client-id that mangled names are matched with; an empty one is not part of the name.
    """
    table = SensorTable()
    mangled: list[tuple[re.Match[str], float]] = []
    malformed = 0
    for line in _OURS.finditer(body):
        sample = _sample(line[0])
        if sample is None:
            malformed += 1
        elif name := _CLEAN.fullmatch(sample.name):
            _put_clean(table, name[1], sample)
        elif (name := _MANGLED.fullmatch(sample.name)) and name[2]:
            mangled.append((name, sample.value))
    ambiguous = _put_mangled(table, mangled, known) if mangled and not table.values else 0
    return SensorReading(table.values, ambiguous, malformed, table.left_out)


def _sample(line: bytes) -> Sample | None:
    try:
        families = text_string_to_metric_families(line.decode())
        return next((sample for family in families for sample in family.samples), None)
    except (ValueError, LookupError):  # the parser fails on malformed input in many ways
        return None


def _put_clean(table: SensorTable, attribute: str, sample: Sample) -> None:
    labels = {_ALIASES.get(re.sub("[_-]", "", name.lower())): value for name, value in sample.labels.items()}
    bean = _BEAN_OF.get(labels.get("resource", "").lower())
    if bean is not None:
        table.put(bean, labels.get("user", ""), labels.get("clientid", ""), _attribute(attribute), sample.value)


def _put_mangled(
    table: SensorTable, mangled: list[tuple[re.Match[str], float]], known: Iterable[tuple[str, str]]
) -> int:
    """Number of names that match no known client, or several."""
    behind: dict[str, set[tuple[str, str]]] = {}
    for user, client_id in known:
        for tags in {(sanitize(user), client_id), (sanitize(user), ""), ("", client_id)}:
            behind.setdefault(_mangled_tags(*tags), set()).add(tags)
    ambiguous = 0
    for name, value in mangled:
        found = behind.get(_safe(name[2]), set())
        ambiguous += len(found) != 1
        for user, client_id in found if len(found) == 1 else ():
            table.put(_BEAN_OF[name[1].lower()], user, client_id, _attribute(name[3]), value)
    return ambiguous


def _mangled_tags(user: str, client_id: str) -> str:
    return _safe((f"_user_{user}" if user else "") + (f"_client_id_{client_id}" if client_id else ""))


def _safe(text: str) -> str:
    """Normalizes a name for comparison: each run of characters other than letters and digits becomes one `_`."""
    return _NOT_IN_A_NAME.sub("_", text.lower()).strip("_")


def _attribute(name: str) -> str:
    return name.lower().replace("_", "-")
