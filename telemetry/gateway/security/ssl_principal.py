"""A client certificate's subject -> the principal's name, by ssl.principal.mapping.rules. Sans-I/O.

Sources: SslPrincipalMapper and DefaultKafkaPrincipalBuilder of Apache Kafka 4.3; X500Principal.getName (RFC 2253).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Subject = Sequence[Sequence[tuple[str, str]]]  # as ssl.SSLObject.getpeercert returns it

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)"
)


class MappingRuleError(ValueError):
    """The text is no list of rules."""


class NoMatchingRuleError(ValueError):
    """No rule matches a subject: Kafka refuses such a client."""


def distinguished_name(subject: Subject) -> str:
    """The subject as Kafka sees it: RFC 2253, the most specific part first."""
    parts = ["+".join(_attribute(name, value) for name, value in part) for part in subject]
    return ",".join(reversed(parts))


def principal_mapper(rules: str) -> Callable[[str], str]:
    """What maps a distinguished name by `rules`. Raises MappingRuleError; what it returns NoMatchingRuleError."""
    parsed = _parsed(rules)

    def mapped(name: str) -> str:
        for rule in parsed:
            if rule["default"]:
                return name
            if match := re.fullmatch(rule["pattern"], name):
                return _cased(_expanded(rule["replacement"], match), rule["case"])
        raise NoMatchingRuleError("no rule of ssl.principal.mapping.rules matches the client's certificate")

    return mapped


def _parsed(rules: str) -> list[re.Match[str]]:
    parsed, at = [], 0
    text = rules.strip() or "DEFAULT"
    while at < len(text):
        rule = _RULE.match(text, at)
        if rule is None:
            raise MappingRuleError(f"{text[at:]!r} is no rule: DEFAULT or RULE:pattern/replacement/[LU]")
        if rule["pattern"] is not None:
            try:
                re.compile(rule["pattern"])
            except re.error as exc:
                raise MappingRuleError(f"{rule['pattern']!r} is no pattern: {exc}") from exc
        parsed.append(rule)
        at = rule.end()
    return parsed


def _expanded(replacement: str, match: re.Match[str]) -> str:
    return re.sub(
        r"\$(\d)", lambda group: match[int(group[1])] if int(group[1]) <= len(match.groups()) else "", replacement
    )


def _cased(name: str, case: str) -> str:
    return name.lower() if case == "L" else name.upper() if case == "U" else name


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress" and len(value) < 128:  # Java knows no short name: object identifier and DER (IA5String)
        return f"1.2.840.113549.1.9.1=#16{len(value):02x}{value.encode().hex()}"
    return f"{_SHORT.get(name, name)}={_escaped(value)}"


def _escaped(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;=#])', r"\\\1", value)
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    return escaped[:-1] + "\\ " if value.endswith(" ") and len(value) > 1 else escaped
