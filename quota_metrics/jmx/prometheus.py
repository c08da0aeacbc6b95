"""Reads quota sensors from the expositions of the Prometheus JMX exporter and of Strimzi's Metrics Reporter. Sans-I/O.

What a sensor measures is in the name, in labels, or in both, as the exporter's rules say:
kafka_server_quota_byte_rate{resource="Produce",user="alice",clientId="app"}   deploy/jmx/kafka-quotas.yml
kafka_server_produce_byte_rate{user="alice",client_id="app"}   Strimzi's reporter, Confluent's rules, no rules at all
kafka_server_quota_Produce_byte_rate{user="alice",client="app"}
kafka_server_produce{user="alice",client_id="app",attribute_name="byte-rate"}

Rules that look for one property match beans with two, because `.+` takes everything: the exporter's kafka-2_0_0.yml
has resource="Produce, user=alice". Its example for KRaft has all in the name, lower case, with `_` for every character
that names may not have: kafka_server_produce_user_alice_client_id_app_byte_rate. Such a name cannot be decoded; it is
accepted if it matches exactly one known client.
"""

import re
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from quota_metrics.config.entities import sanitize
from quota_metrics.jmx.sensors import BEANS, THROTTLE, SensorReading, SensorTable

_ATTRIBUTES = "byte_rate|request_time|mutation_rate|throttle_time"
_OURS = re.compile(rb"^kafka_server_(?:quota|produce|fetch|request|controllermutation)[_{][^\n]*$", re.I | re.M)
# What is measured, and which attribute of it; either may be in a label instead.
_CLEAN = re.compile(
    rf"kafka_server_(?:quota_?)?(?:(produce|fetch|request|controllermutation)(?:_|$))?({_ATTRIBUTES})?(?:_ms|_percent)?",
    re.I,
)
_MANGLED = re.compile(
    rf"kafka_server_(produce|fetch|request|controllermutation)((?:_user_.+?)?(?:_client_id_.+)?)_({_ATTRIBUTES})", re.I
)
_NOT_IN_A_NAME = re.compile("[^a-z0-9]+")

_BEAN_OF = {bean.lower(): bean for bean in BEANS}
_ALIASES = {
    **dict.fromkeys(("resource", "type", "quotatype", "quota", "kind"), "resource"),
    **dict.fromkeys(("user", "principal", "username"), "user"),
    **dict.fromkeys(("clientid", "client"), "clientid"),
    **dict.fromkeys(("attributename", "attribute", "attr"), "attribute"),
}
_USER, _CLIENT_ID = ", user=", ", client-id="
# A property of a bean, as the exporter's rules see it. Users are percent-encoded; JMX quotes a client id with commas.
_PROPERTY = re.compile(r', (user|client-id)=("(?:\\.|[^"\\])*"|[^,"]*)', re.DOTALL)


def read_exposition(body: bytes, clients: Iterable[tuple[str, str]] = ()) -> SensorReading:
    """The quota sensors in an exposition; other lines are ignored. Never raises.

    `clients`: pairs of user and client-id, with which mangled names are matched; an empty one is not part of the name.
    """
    table = SensorTable()
    mangled: list[tuple[re.Match[str], float]] = []
    malformed = 0
    for line in _OURS.finditer(body):
        try:
            families = text_string_to_metric_families(line[0].decode("utf-8", "replace"))
            sample = next((sample for family in families for sample in family.samples), None)
        except (ValueError, LookupError):  # the parser fails on malformed input in many ways
            sample = None
        if sample is None:
            malformed += 1
        elif (name := _CLEAN.fullmatch(sample.name)) and sample.labels:
            _put_clean(table, name[1] or "", name[2] or "", sample)
        elif (name := _MANGLED.fullmatch(sample.name)) and name[2]:
            mangled.append((name, sample.value))
    ambiguous = _put_mangled(table, mangled, clients) if mangled and not table.values else 0
    return SensorReading(table.values, ambiguous, malformed, table.left_out)


def _put_clean(table: SensorTable, resource: str, attribute: str, sample: Sample) -> None:
    """`resource`, `attribute`: of the name, empty where a label has them."""
    labels = {_ALIASES.get(re.sub("[_-]", "", name.lower()), name): value for name, value in sample.labels.items()}
    stated, user, client_id = labels.get("resource", ""), labels.get("user", ""), labels.get("clientid", "")
    if "resource" in labels or _CLIENT_ID in user:
        stated, user, client_id = _divide_properties(stated, user, client_id)
    bean = _BEAN_OF.get((resource or stated).lower())
    name = _attribute(attribute or labels.get("attribute", ""))
    if bean is not None and name in (BEANS[bean][1], THROTTLE):
        table.put(bean, user, client_id, name, sample.value)


def _divide_properties(resource: str, user: str, client_id: str) -> tuple[str, str, str]:
    """The three properties of a bean whose rule may have cut it elsewhere; unchanged if they do not make a bean."""
    text = resource + (_USER + user if user else "") + (_CLIENT_ID + client_id if client_id else "")
    kind, _, _ = text.partition(",")
    matches = list(_PROPERTY.finditer(text, len(kind)))
    if kind + "".join(match[0] for match in matches) != text:
        return resource, user, client_id
    properties = {match[1]: match[2] for match in matches}
    return kind, properties.get("user", ""), properties.get("client-id", "")


def _put_mangled(
    table: SensorTable, mangled: list[tuple[re.Match[str], float]], clients: Iterable[tuple[str, str]]
) -> int:
    """Returns the number of names that match none of the clients, or several."""
    behind: dict[str, set[tuple[str, str]]] = {}
    for user, client_id in clients:
        for tags in {(sanitize(user), client_id), (sanitize(user), ""), ("", client_id)}:
            text = (f"_user_{tags[0]}" if tags[0] else "") + (f"_client_id_{tags[1]}" if tags[1] else "")
            behind.setdefault(_safe(text), set()).add(tags)
    ambiguous = 0
    for name, value in mangled:
        matching = behind.get(_safe(name[2]), set())
        ambiguous += len(matching) != 1
        for user, client_id in matching if len(matching) == 1 else ():
            table.put(_BEAN_OF[name[1].lower()], user, client_id, _attribute(name[3]), value)
    return ambiguous


def _safe(text: str) -> str:
    """Normalizes a name for comparison: each run of characters other than letters and digits becomes one `_`."""
    return _NOT_IN_A_NAME.sub("_", text.lower()).strip("_")


def _attribute(name: str) -> str:
    return name.lower().replace("_", "-")
