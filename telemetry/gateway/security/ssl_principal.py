"""A client certificate's subject -> the principal's name, by ssl.principal.mapping.rules. Sans-I/O.

Sources: SslPrincipalMapper and DefaultKafkaPrincipalBuilder of Apache Kafka 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from telemetry.subscriptions.java.regex import JavaPattern
from telemetry.wire.errors import JavaPatternError

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)"
)


class MappingRuleError(ValueError):
    """The text is no list of rules."""


class NoMatchingRuleError(ValueError):
    """No rule matches a subject: Kafka refuses such a client."""


def principal_mapper(rules: str) -> Callable[[str], str]:
    """What maps a distinguished name by `rules`. Raises MappingRuleError; what it returns NoMatchingRuleError.

    Patterns run in linear time (RE2), because clients choose the subjects of the certificates that they request.
    """
    parsed = _parsed(rules)

    def mapped(name: str) -> str:
        for rule, pattern in parsed:
            if pattern is None:
                return name
            if (groups := pattern.groups(name)) is not None:
                return _cased(_expanded(rule["replacement"], groups), rule["case"])
        raise NoMatchingRuleError("no rule of ssl.principal.mapping.rules matches the client's certificate")

    return mapped


def _parsed(rules: str) -> list[tuple[re.Match[str], JavaPattern | None]]:
    """Each rule with its pattern; None for DEFAULT."""
    parsed: list[tuple[re.Match[str], JavaPattern | None]] = []
    at = 0
    text = rules.strip() or "DEFAULT"
    while at < len(text):
        rule = _RULE.match(text, at)
        if rule is None:
            raise MappingRuleError(f"{text[at:]!r} is no rule: DEFAULT or RULE:pattern/replacement/[LU]")
        try:
            pattern = None if rule["default"] else JavaPattern(rule["pattern"], captures=True)
        except JavaPatternError as exc:
            raise MappingRuleError(f"{rule['pattern']!r} is no pattern: {exc}") from exc
        parsed.append((rule, pattern))
        at = rule.end()
    return parsed


def _expanded(replacement: str, groups: Sequence[str]) -> str:
    return re.sub(r"\$(\d)", lambda one: groups[int(one[1])] if int(one[1]) < len(groups) else "", replacement)


def _cased(name: str, case: str) -> str:
    return name.lower() if case == "L" else name.upper() if case == "U" else name
