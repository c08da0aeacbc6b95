"""Reads quota sensors by a Jolokia bulk request: one POST, the MBeans' own names, no rules file. Sans-I/O."""

from __future__ import annotations

import re

import orjson

from quota_metrics.jmx.sensors import BEANS, THROTTLE, SensorReading, SensorTable

# One property of an ObjectName; values with separators are quoted.
_PROPERTY = re.compile(r'([^=,:*?"]+)=("(?:\\.|[^"\\])*"|[^,"]*)(?:,|$)', re.DOTALL)
_DOMAIN = "kafka.server:"


def read_request() -> bytes:
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


def read_answer(body: bytes) -> SensorReading:
    """The sensors in a response; types without MBeans are ignored. Raises ValueError for invalid responses."""
    answers = orjson.loads(body)
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise ValueError("the response is not a list of Jolokia responses")
    table = SensorTable()
    malformed = 0
    values = [answer.get("value") for answer in answers if answer.get("status") == 200]
    beans = [bean for value in values if isinstance(value, dict) for bean in value.items()]
    for name, attributes in beans:
        properties = _parse_properties(name)
        bean = properties.get("type", "")
        if bean not in BEANS or not isinstance(attributes, dict):
            malformed += 1
            continue
        for attribute in (BEANS[bean][1], THROTTLE):
            value = attributes.get(attribute)
            if isinstance(value, int | float):  # NaN is null or a string; a missing attribute is an error message
                table.put(bean, properties.get("user", ""), properties.get("client-id", ""), attribute, float(value))
    return SensorReading(table.values, 0, malformed, table.left_out)


def _parse_properties(name: str) -> dict[str, str]:
    """The properties of an ObjectName in the domain kafka.server; {} for other names."""
    if not name.startswith(_DOMAIN):
        return {}
    text, place, properties = name[len(_DOMAIN) :], 0, dict[str, str]()
    while place < len(text):
        match = _PROPERTY.match(text, place)
        if match is None:
            return {}
        properties[match[1]] = match[2]
        place = match.end()
    return properties
