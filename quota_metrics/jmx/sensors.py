"""The broker's quota sensors: rate and throttle time per metric tags; how Jolokia is asked for them. Sans-I/O.

MBeans: kafka.server:type={Produce|Fetch|Request|ControllerMutation}[,user=U][,client-id=C]; empty tags are omitted.
A sensor belongs to a quota group, not to a client: `user` or `client_id` is empty where all of them share the quota.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import orjson

from exporters.model import QuotaKey, UsageSample
from quota_metrics.config.entities import desanitize

# MBean type -> quota key, and the attribute that is its rate.
BEANS: dict[str, tuple[str, str]] = {
    "Produce": (QuotaKey.PRODUCER_BYTE_RATE.value, "byte-rate"),
    "Fetch": (QuotaKey.CONSUMER_BYTE_RATE.value, "byte-rate"),
    "Request": (QuotaKey.REQUEST_PERCENTAGE.value, "request-time"),
    "ControllerMutation": (QuotaKey.CONTROLLER_MUTATION_RATE.value, "mutation-rate"),
}
THROTTLE = "throttle-time"
MAX_SENSORS = 50_000  # per broker; each becomes a row of usage

Place: TypeAlias = tuple[str, str, str]  # MBean type, user, client-id

# A property of an ObjectName; values with separators are quoted.
_PROPERTY = re.compile(r'([^=,:*?"]+)=("(?:\\.|[^"\\])*"|[^,"]*)(?:,|$)', re.DOTALL)
_DOMAIN = "kafka.server:"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class SensorReading(NamedTuple):
    """The sensors of one broker. Values are by MBean type, user, client-id, then attribute."""

    values: dict[Place, dict[str, float]]
    ambiguous: int = 0  # values with ambiguous names
    malformed: int = 0  # values that cannot be parsed
    left_out: int = 0  # values beyond MAX_SENSORS


class SensorTable:
    """Collects the values of at most MAX_SENSORS sensors."""

    def __init__(self) -> None:
        self.values: dict[Place, dict[str, float]] = {}
        self.left_out = 0

    def put(self, bean: str, user: str, client_id: str, attribute: str, value: float) -> None:
        """`user` and `client_id` as in the MBean's name: quoted where JMX quotes them, the user sanitized."""
        if not user and not client_id:
            return  # the queue's size, the time of exempt requests
        place = (bean, desanitize(unquoted(user)), unquoted(client_id))
        if place in self.values:
            self.values[place][attribute] = value
        elif len(self.values) < MAX_SENSORS:
            self.values[place] = {attribute: value}
        else:
            self.left_out += 1


def unquoted(value: str) -> str:
    """The inverse of javax.management.ObjectName.quote; unquoted values are returned unchanged."""
    if len(value) < 2 or not (value.startswith('"') and value.endswith('"')):
        return value
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value[1:-1])


def usage_samples(
    values: Iterable[tuple[Place, dict[str, float]]], cluster: str, broker_id: int, now_ms: int
) -> list[UsageSample]:
    """Rows of quota_usage, none for idle clients. `bytes` and `throttled_requests` are 0: brokers expose rates only.

    `throttle_ms` is the broker's mean of the throttle times above 0 over its last two samples of 30 s, so it remains
    above 0 for up to a minute after the last of them.
    """
    rows = []
    for (bean, user, client_id), attributes in values:
        quota_key, rate_name = BEANS[bean]
        rate, throttle_ms = attributes.get(rate_name, math.nan), attributes.get(THROTTLE, math.nan)
        throttle_ms = throttle_ms if math.isfinite(throttle_ms) else 0.0  # NaN until the first throttle
        if math.isfinite(rate) and (rate > 0 or throttle_ms > 0):
            rows.append(
                UsageSample(
                    cluster, quota_key, now_ms, user, client_id, "", broker_id, 0, rate, throttle_ms, 0, source="jmx"
                )
            )
    return rows


def jolokia_request() -> bytes:
    """A bulk request by the MBeans' own names: the body to POST."""
    return orjson.dumps(
        [
            {
                "type": "read",
                "mbean": f"{_DOMAIN}type={bean},*",
                "attribute": [rate, THROTTLE],
                "config": {"ignoreErrors": "true", "maxDepth": 3},
            }
            for bean, (_quota_key, rate) in BEANS.items()
        ]
    )


def read_jolokia(body: bytes) -> SensorReading:
    """The sensors in a response; types without MBeans are ignored. Raises ValueError for invalid responses."""
    answers = orjson.loads(body)
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise ValueError("the response is not a list of Jolokia responses")
    table = SensorTable()
    malformed = 0
    values = [answer.get("value") for answer in answers if answer.get("status") == 200]
    beans = [bean for value in values if isinstance(value, dict) for bean in value.items()]
    for name, attributes in beans:
        matches = list(_PROPERTY.finditer(name, len(_DOMAIN)))
        is_whole = _DOMAIN + "".join(match[0] for match in matches) == name
        properties = {match[1]: match[2] for match in matches} if is_whole else {}
        bean = properties.get("type", "")
        if bean not in BEANS or not isinstance(attributes, dict):
            malformed += 1
            continue
        for attribute in (BEANS[bean][1], THROTTLE):
            value = attributes.get(attribute)
            if isinstance(value, int | float):  # NaN is null or a string; a missing attribute is an error message
                table.put(bean, properties.get("user", ""), properties.get("client-id", ""), attribute, float(value))
    return SensorReading(table.values, 0, malformed, table.left_out)
